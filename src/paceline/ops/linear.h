#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

// Activations are [.., width], contiguous; leading dimensions are rows. Weights are [out, in].

/// y = x W^T + b: [.., in] -> [.., out]. An undefined bias means none.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

/// dx = dy W: [.., out] -> [.., in].
at::Tensor linear_backward_input(const at::Tensor& dy, const at::Tensor& weight);

/// dW = dy^T x, and db = the sum of dy over rows where `grad_bias` is defined, written straight into the given
/// buffers (added to them with `accumulate`). `grad_weight` is [out, in] with contiguous rows.
void linear_backward_weight(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& grad_weight,
                            const at::Tensor& grad_bias, bool accumulate);

}  // namespace paceline
