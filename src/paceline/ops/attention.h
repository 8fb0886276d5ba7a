#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace paceline {

struct AttentionOutput {
  at::Tensor y;          ///< [B, T, heads head_dim]
  at::Tensor logsumexp;  ///< [B, heads, T], natural logarithm, fp32 (fp64 for fp64), saved for backward
};

/// Causal grouped-query attention, scale 1 / sqrt(head_dim). qkv is the fused tensor
/// [B, T, (heads + 2 kv_heads) head_dim] = [queries | keys | values], contiguous, already rotated. Query head h reads
/// key/value head h / (heads / kv_heads). No score matrix larger than a tile is made.
AttentionOutput attention_forward(const at::Tensor& qkv, int64_t heads, int64_t kv_heads);

/// Writes the gradient of qkv into dqkv (same layout; every element is assigned). dy and y are [B, T, heads head_dim].
void attention_backward(const at::Tensor& dy, const at::Tensor& qkv, const AttentionOutput& output, int64_t heads,
                        int64_t kv_heads, const at::Tensor& dqkv);

/// Attention of new queries over a cache, for decoding: q [B, T, heads head_dim] at positions
/// [length - T, length); keys and values [B, >= length, kv_heads head_dim], of which the first `length` rows are used
/// (row stride free, last dimension contiguous). Returns [B, T, heads head_dim].
at::Tensor attention_cached_forward(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                                    int64_t length, int64_t heads, int64_t kv_heads);

}  // namespace paceline
