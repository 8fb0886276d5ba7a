#pragma once

#include "paceline/base/error.h"
#include "paceline/data/token_loader.h"
#include "paceline/train/sample_source.h"

#include <string>

namespace paceline {

/// The samples of a shard on disk. The manifest vouches for the range of its tokens; a file that was damaged since is
/// an error that names file, position and token.
class ShardSource : public SampleSource {
 public:
  ShardSource(const std::string& prefix, std::int64_t sequence_length, std::uint64_t seed, bool shuffle,
              std::int64_t vocab_size)
      : loader_(prefix, sequence_length, seed, shuffle), vocab_size_(vocab_size) {}
  const TokenLoader& loader() const { return loader_; }
  std::int64_t sequence_length() const override { return loader_.sequence_length(); }
  void read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
            std::span<std::uint8_t> loss_mask) const override {
    loader_.read(sample, tokens, document_ids, loss_mask);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= 0 && tokens[i] < vocab_size_) continue;
      fail("{}: token {} at position {} is outside the vocabulary of {}: the file is damaged, build the data again",
           loader_.shard().bin_path().string(), tokens[i], loader_.first_token(sample) + static_cast<std::int64_t>(i),
           vocab_size_);
    }
  }

 private:
  TokenLoader loader_;
  std::int64_t vocab_size_;
};

}  // namespace paceline
