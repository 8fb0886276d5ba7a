#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

struct LayerNormOutput {
  at::Tensor y;     ///< the shape of x
  at::Tensor mean;  ///< [rows], saved for backward
  at::Tensor rstd;  ///< [rows]: 1 / sqrt(variance + epsilon), saved for backward
};

/// y = (x - mean) * rstd * weight + bias over the last dimension. x is contiguous [.., width]; weight and bias [width].
LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                   double epsilon);

/// All gradients in one pass over memory. dx is assigned, or added to with `accumulate_input` (it may be dy itself
/// when it is assigned); grad_weight and grad_bias [width] likewise with `accumulate_weight`. The order of summation
/// depends on the number of intra-op threads only.
void layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& dx, bool accumulate_input,
                         const at::Tensor& grad_weight, const at::Tensor& grad_bias, bool accumulate_weight);

}  // namespace paceline
