#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <functional>
#include <vector>

#include "paceline/base/philox.h"

namespace paceline {

/// Standard normal values, the same for every type.
inline at::Tensor random_tensor(at::IntArrayRef sizes, uint64_t seed, at::ScalarType type = at::kDouble) {
  at::Tensor values = at::empty(sizes, at::kDouble);
  double* data = values.mutable_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = random_normal(stream_key(seed, "test"), i);
  return values.to(type);
}

inline at::Tensor random_tokens(at::IntArrayRef sizes, int64_t vocabulary, uint64_t seed) {
  at::Tensor tokens = at::empty(sizes, at::kLong);
  int64_t* data = tokens.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i)
    data[i] = static_cast<int64_t>(random_uniform(stream_key(seed, "tokens"), i) * static_cast<double>(vocabulary));
  return tokens;
}

/// ||a - b|| / ||b||, in fp64; NaN where either is not finite.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor expected = b.detach().to(at::kDouble);
  const double norm = expected.norm().item<double>();
  const double difference = (a.detach().to(at::kDouble) - expected).norm().item<double>();
  return norm == 0 ? difference : difference / norm;
}

/// What autograd gives for `function(inputs)` with the output's gradient `dy`.
struct AutogradResult {
  at::Tensor y;
  std::vector<at::Tensor> gradients;
};

inline AutogradResult autograd(const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
                               const std::vector<at::Tensor>& inputs, const at::Tensor& dy) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().set_requires_grad(true));
  const at::Tensor y = function(leaves);
  y.backward(dy);
  AutogradResult result{y.detach(), {}};
  for (const at::Tensor& leaf : leaves) result.gradients.push_back(leaf.grad());
  return result;
}

/// The tolerance of a type for sums of up to some thousand terms.
inline double tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-12 : 3e-6; }

}  // namespace paceline
