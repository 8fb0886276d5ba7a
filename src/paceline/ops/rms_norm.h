#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

struct RmsNormOutput {
  at::Tensor y;     ///< the shape of x
  at::Tensor rstd;  ///< [rows]: 1 / sqrt(mean(x^2) + epsilon), saved for backward
};

/// y = x * rstd * weight over the last dimension (Zhang & Sennrich 2019). x is contiguous [.., width], weight [width].
RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// Both gradients in one pass over memory. dx is assigned, or added to with `accumulate_input` (the residual
/// stream's gradient; dx may also be dy itself when it is assigned); grad_weight [width] likewise with
/// `accumulate_weight`. The order of summation depends on the number of intra-op threads only.
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                       const at::Tensor& dx, bool accumulate_input, const at::Tensor& grad_weight,
                       bool accumulate_weight);

}  // namespace paceline
