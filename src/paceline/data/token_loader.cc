#include "paceline/data/token_loader.h"

#include <algorithm>
#include <filesystem>

#include "paceline/base/error.h"
#include "paceline/base/philox.h"

namespace paceline {

TokenLoader::TokenLoader(const std::string& prefix, std::int64_t sequence_length, std::uint64_t seed, bool shuffle)
    : shard_(prefix), sequence_length_(sequence_length), seed_(seed), shuffle_(shuffle) {
  if (sequence_length < 1) refuse("a sequence length of {} is not possible, the least is 1", sequence_length);
  samples_per_epoch_ = shard_.tokens() < 1 ? 0 : (shard_.tokens() - 1) / sequence_length;
  if (samples_per_epoch_ == 0) {
    fail("{}.bin: has {} tokens, but one sample of sequence length {} needs {}", prefix, shard_.tokens(),
         sequence_length, sequence_length + 1);
  }
  const std::filesystem::path mask = prefix + ".mask";
  if (std::filesystem::exists(mask)) {
    mask_.emplace(mask);
    if (static_cast<std::int64_t>(mask_->size()) != shard_.tokens()) {
      fail("{}: has {} bytes, but {}.bin has {} tokens: one byte a token is needed", mask.string(), mask_->size(),
           prefix, shard_.tokens());
    }
  }
}

std::int64_t TokenLoader::first_token(std::uint64_t sample_number) const {
  const auto windows = static_cast<std::uint64_t>(samples_per_epoch_);
  std::uint64_t window = sample_number % windows;
  if (shuffle_) {
    const std::uint64_t epoch = sample_number / windows;
    window = random_permutation(stream_key(seed_, fmt::format("data order epoch {}", epoch)), windows, window);
  }
  return static_cast<std::int64_t>(window) * sequence_length_;
}

void TokenLoader::read(std::uint64_t sample_number, std::span<std::int64_t> tokens,
                       std::span<std::int32_t> document_ids, std::span<std::uint8_t> loss_mask) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  PACELINE_CHECK(tokens.size() == length + 1 && document_ids.size() == length + 1 && loss_mask.size() == length);
  const std::int64_t begin = first_token(sample_number);
  const std::int64_t end = begin + sequence_length_ + 1;
  shard_.read(begin, tokens);

  std::int64_t document = shard_.document_of(begin);
  for (std::int64_t position = begin; position < end; ++document) {
    const std::int64_t document_end = std::min(shard_.document_begin(document + 1), end);
    for (; position < document_end; ++position) {
      document_ids[static_cast<std::size_t>(position - begin)] = static_cast<std::int32_t>(document);
    }
  }
  for (std::size_t i = 0; i < length; ++i) {
    const std::size_t target = static_cast<std::size_t>(begin) + i + 1;
    loss_mask[i] = !mask_ || mask_->data()[target] != std::byte{0} ? 1 : 0;
  }
}

}  // namespace paceline
