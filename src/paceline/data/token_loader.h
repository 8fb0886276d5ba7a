#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "paceline/data/indexed_shard.h"
#include "paceline/data/mapped_file.h"

namespace paceline {

/// The training samples of a shard. Sample w of the packed stream is its tokens
/// [w * sequence_length, w * sequence_length + sequence_length], so that consecutive windows share one token and every
/// token but the first is a target once; what is left behind the last whole window is dropped.
///
/// Which window sample n is depends on (seed, n) alone: epoch k = n / samples_per_epoch() visits all windows in the
/// order of a permutation keyed by "data order epoch k"; without shuffling in file order. So the loader's state is the
/// number of samples consumed, for any number of ranks.
///
/// Masked targets come from the optional file `<prefix>.mask`, one byte a token, 0 where the token is no target: by
/// position, never by id, so padding that shares the end-of-text id leaves the true ends in. Thread-safe.
class TokenLoader {
 public:
  /// A shard without one whole sample is refused with the numbers.
  TokenLoader(const std::string& prefix, std::int64_t sequence_length, std::uint64_t seed, bool shuffle);

  std::int64_t sequence_length() const { return sequence_length_; }
  std::int64_t samples_per_epoch() const { return samples_per_epoch_; }
  const IndexedShard& shard() const { return shard_; }

  /// Position in the packed stream of the sample's first token.
  std::int64_t first_token(std::uint64_t sample_number) const;

  /// One sample in O(sequence_length).
  /// @param tokens, document_ids sequence_length + 1 values; a document id counts the shard's documents from 0
  /// @param loss_mask sequence_length values: 1 where tokens[i + 1] counts as the target of tokens[i]
  void read(std::uint64_t sample_number, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
            std::span<std::uint8_t> loss_mask) const;

 private:
  IndexedShard shard_;
  std::optional<MappedFile> mask_;
  std::int64_t sequence_length_;
  std::int64_t samples_per_epoch_ = 0;
  std::uint64_t seed_;
  bool shuffle_;
};

}  // namespace paceline
