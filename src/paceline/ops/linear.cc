#include "paceline/ops/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "paceline/base/error.h"
#include "paceline/ops/add.h"
#include "paceline/ops/floating.h"

namespace paceline {
namespace {

at::Tensor with_width(const at::Tensor& x, int64_t width) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = width;
  return at::empty(sizes, x.options());
}

}  // namespace

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  PACELINE_CHECK(weight.dim() == 2 && x.size(-1) == weight.size(1));
  at::Tensor y = with_width(x, weight.size(0));
  at::Tensor matrix = as_matrix(y);
  if (bias.defined()) {
    at::addmm_out(matrix, bias, as_matrix(x), weight.t());
  } else {
    at::mm_out(matrix, as_matrix(x), weight.t());
  }
  return y;
}

at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& weight) {
  PACELINE_CHECK(weight.dim() == 2 && dy.size(-1) == weight.size(0));
  at::Tensor dx = with_width(dy, weight.size(1));
  at::Tensor matrix = as_matrix(dx);
  at::mm_out(matrix, as_matrix(dy), weight);
  return dx;
}

void linear_backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& grad_weight,
                            const at::Tensor& grad_bias, bool accumulate) {
  PACELINE_CHECK(grad_weight.dim() == 2 && grad_weight.size(0) == dy.size(-1) && grad_weight.size(1) == x.size(-1));
  at::Tensor out = grad_weight;
  if (accumulate) {
    at::addmm_out(out, out, as_matrix(dy).t(), as_matrix(x));
  } else {
    at::mm_out(out, as_matrix(dy).t(), as_matrix(x));
  }
  if (grad_bias.defined()) add_bias_backward(dy, grad_bias, accumulate);
}

}  // namespace paceline
