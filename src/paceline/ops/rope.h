#pragma once

#include "paceline/arch/model_config.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace paceline {

/// The head_dim / 2 angular frequencies theta^(-2i / head_dim), in radians a position, scaled if asked.
std::vector<double> rope_frequencies(int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling = {});

struct RopeTables {
  at::Tensor cos;  ///< [positions, head_dim / 2]
  at::Tensor sin;  ///< [positions, head_dim / 2]
};

/// Cosine and sine of position x frequency for positions [0, positions), computed in fp64 and rounded once.
RopeTables rope_tables(const std::vector<double>& frequencies, int64_t positions, at::ScalarType type);

/// Rotates the query and key heads of qkv [B, T, (heads + 2 kv_heads) head_dim] in place; the values stay. Half-split
/// pairs (i, i + head_dim / 2), as in Hugging Face's LLaMA. Row t uses position first_position + t; throws if the
/// tables are too short.
void rope_forward(const at::Tensor& qkv, const RopeTables& tables, int64_t heads, int64_t kv_heads,
                  int64_t first_position = 0);

/// The same in place on the gradient: a rotation by the negative angle.
void rope_backward(const at::Tensor& dqkv, const RopeTables& tables, int64_t heads, int64_t kv_heads,
                   int64_t first_position = 0);

}  // namespace paceline
