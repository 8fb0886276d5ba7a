#pragma once

#include <ATen/core/Tensor.h>

#include "paceline/base/error.h"

namespace paceline {

/// Calls `body` with a zero of the tensor's element type. The kernels exist for fp32, and for fp64 as the tests'
/// precision.
template <typename Body>
decltype(auto) with_floating_type(const at::Tensor& tensor, Body&& body) {
  PACELINE_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
  if (tensor.scalar_type() == at::kFloat) return body(float(0));
  return body(double(0));
}

/// Rows of a contiguous [.., width] tensor.
inline int64_t rows_of(const at::Tensor& x) {
  PACELINE_CHECK(x.is_contiguous() && x.dim() >= 1);
  return x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
}

/// A contiguous [.., width] tensor as a matrix.
inline at::Tensor as_matrix(const at::Tensor& x) { return x.view({rows_of(x), x.size(-1)}); }

}  // namespace paceline
