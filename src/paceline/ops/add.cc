#include "paceline/ops/add.h"

#include <ATen/ops/add.h>

#include "paceline/base/error.h"
#include "paceline/ops/floating.h"
#include "paceline/ops/row_blocks.h"

namespace paceline {

at::Tensor add_forward(const at::Tensor& a, const at::Tensor& b) {
  PACELINE_CHECK(a.sizes() == b.sizes());
  return at::add(a, b);
}

void add_into(const at::Tensor& a, const at::Tensor& b) {
  PACELINE_CHECK(a.sizes() == b.sizes());
  a.add_(b);
}

void add_bias_forward(const at::Tensor& x, const at::Tensor& bias) {
  PACELINE_CHECK(bias.dim() == 1 && bias.size(0) == x.size(-1));
  x.add_(bias);
}

void add_bias_backward(const at::Tensor& dy, const at::Tensor& grad_bias, bool accumulate) {
  PACELINE_CHECK(grad_bias.numel() == dy.size(-1) && grad_bias.is_contiguous());
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    sum_rows(dy.const_data_ptr<T>(), rows_of(dy), dy.size(-1), grad_bias.mutable_data_ptr<T>(), accumulate);
  });
}

}  // namespace paceline
