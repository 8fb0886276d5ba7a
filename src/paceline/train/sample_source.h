#pragma once

#include <cstdint>
#include <span>

namespace paceline {

/// Where samples come from: a shard, or random tokens for benchmarks. Reading is a pure function of the sample's number.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual std::int64_t sequence_length() const = 0;
  /// Fills `tokens` and `document_ids` (sequence_length + 1 each) and `loss_mask` (sequence_length: whether the target
  /// tokens[i + 1] counts) of one sample.
  virtual void read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
                    std::span<std::uint8_t> loss_mask) const = 0;
};

}  // namespace paceline
