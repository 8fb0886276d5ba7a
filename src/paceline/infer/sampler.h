#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace paceline {

struct SamplingOptions {
  double temperature = 1.0;  ///< divides the logits; 0: always the most likely token
  std::int64_t top_k = 0;    ///< only the k most likely tokens; 0: all
  double top_p = 1.0;        ///< of those, the fewest most likely ones that hold this share of their probability
  std::uint64_t seed = 1;
};

/// Draws tokens from logits. What is drawn is a function of (seed, index, logits).
class Sampler {
 public:
  /// `allowed` by token id: others have no probability. Refuses options that no distribution has.
  Sampler(const SamplingOptions& options, std::vector<bool> allowed);

  /// `logits` [vocabulary]; `index` counts the draws. Of equally likely tokens the lower id comes first. Fails where the
  /// logits are not finite.
  std::int64_t sample(const at::Tensor& logits, std::uint64_t index) const;

 private:
  SamplingOptions options_;
  std::vector<bool> allowed_;
  std::uint64_t key_;
};

}  // namespace paceline
