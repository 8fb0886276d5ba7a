#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

/// The two forms in use: GPT-2's `gelu_new` is the tanh approximation, plain `gelu` is exact (erf).
enum class GeluKind { tanh, erf };

at::Tensor gelu_forward(const at::Tensor& x, GeluKind kind);

/// Writes dx for dy and the forward's input x, all of one shape. `dx` may be `dy` or `x` itself.
void gelu_backward(const at::Tensor& dy, const at::Tensor& x, GeluKind kind, const at::Tensor& dx);

}  // namespace paceline
