#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace paceline {

struct AdamWSettings {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
};

/// One step of AdamW with decoupled decay (Loshchilov & Hutter 2019, as torch.optim.AdamW) over contiguous buffers of
/// one size and one type (fp32 or fp64), in one pass over memory:
///   g = gradient x multiplier;  p *= 1 - learning_rate x weight_decay
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= learning_rate / (1 - beta1^count) x m / (sqrt(v / (1 - beta2^count)) + epsilon)
/// `count` is 1 in the first step. The gradient is read only.
void adamw_step(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
                const at::Tensor& second_moment, int64_t count, const AdamWSettings& settings,
                double gradient_multiplier = 1.0);

}  // namespace paceline
