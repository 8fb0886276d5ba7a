#pragma once

#include "paceline/arch/program.h"
#include "paceline/ops/rope.h"
#include "paceline/train/model_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace paceline {

/// Plays a whole model's operations forward over one sequence that grows, with the keys and values of earlier positions
/// cached at each attention operation: the same logits as a forward over the whole sequence, at the cost of the new tokens.
class Decoder {
 public:
  /// `program` (of layout 1x1x1) and `state` outlive the decoder. `capacity` positions, at most the model's own.
  Decoder(const Program& program, const ModelState& state, std::int64_t capacity);

  std::int64_t capacity() const { return capacity_; }
  std::int64_t length() const { return length_; }  ///< positions in the cache

  /// Appends tokens, at least one and no more than fit. Returns the logits of each, [tokens, vocabulary].
  at::Tensor append(std::span<const std::int64_t> tokens);
  /// The same, but only the last token's logits, [vocabulary].
  at::Tensor append_for_next(std::span<const std::int64_t> tokens);

  /// Forgets all positions from `length` on.
  void truncate(std::int64_t length);

 private:
  struct Cache {
    at::Tensor keys;    ///< [1, capacity, kv_heads head_dim]
    at::Tensor values;
  };
  at::Tensor forward(std::span<const std::int64_t> tokens, bool last_only);
  at::Tensor attention(const Operation& operation, Cache& cache, const at::Tensor& qkv) const;

  const Program& program_;
  const ModelState& state_;
  std::int64_t capacity_;
  std::int64_t length_ = 0;
  std::optional<RopeTables> rope_;
  std::vector<Cache> caches_;  ///< by operation; empty where it is no attention
  std::vector<int> last_use_;  ///< of each value
};

}  // namespace paceline
