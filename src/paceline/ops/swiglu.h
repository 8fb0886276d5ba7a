#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

/// silu(gate) * up: gate_up [.., 2 ffn] = [gate | up], contiguous -> [.., ffn] (Shazeer 2020).
at::Tensor swiglu_forward(const at::Tensor& gate_up);

/// Writes d gate_up [.., 2 ffn] for dy [.., ffn]. `d_gate_up` may be `gate_up` itself, which is then overwritten.
void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor& d_gate_up);

}  // namespace paceline
