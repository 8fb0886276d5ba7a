#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace paceline {

/// The sum of squares of a contiguous tensor's elements in fp64. Blocks of fixed size are added up in order, so
/// that the bits do not depend on the number of threads.
double sum_of_squares(const at::Tensor& values);

/// What gradients are multiplied with: min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if
/// max_norm is 0 (off). Nothing if the norm is not finite: such a gradient must not be applied. Refuses a negative or
/// non-finite max_norm.
std::optional<double> clip_coefficient(double norm, double max_norm);

}  // namespace paceline
