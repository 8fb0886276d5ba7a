#pragma once

#include "paceline/data/token_loader.h"
#include "paceline/train/sample_source.h"

#include <string>

namespace paceline {

/// The samples of a shard on disk.
class ShardSource : public SampleSource {
 public:
  ShardSource(const std::string& prefix, std::int64_t sequence_length, std::uint64_t seed, bool shuffle)
      : loader_(prefix, sequence_length, seed, shuffle) {}
  const TokenLoader& loader() const { return loader_; }
  std::int64_t sequence_length() const override { return loader_.sequence_length(); }
  void read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
            std::span<std::uint8_t> loss_mask) const override {
    loader_.read(sample, tokens, document_ids, loss_mask);
  }

 private:
  TokenLoader loader_;
};

}  // namespace paceline
