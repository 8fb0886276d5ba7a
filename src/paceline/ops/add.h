#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

/// a + b, of one shape.
at::Tensor add_forward(const at::Tensor& a, const at::Tensor& b);

/// a += b.
void add_into(const at::Tensor& a, const at::Tensor& b);

/// x [.., width] += bias [width], in place. For products whose bias comes after a reduction over ranks.
void add_bias_forward(const at::Tensor& x, const at::Tensor& bias);

/// grad_bias [width] = or += the sum of dy [.., width] over rows, in a fixed order.
void add_bias_backward(const at::Tensor& dy, const at::Tensor& grad_bias, bool accumulate);

}  // namespace paceline
