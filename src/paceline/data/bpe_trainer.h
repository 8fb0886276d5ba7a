#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "paceline/data/byte_bpe.h"

namespace paceline {

/// How often each of GPT-2's words occurs in some text.
class WordCounts {
 public:
  void add(std::string_view text);
  void merge(const WordCounts& other);
  std::size_t size() const { return counts_.size(); }

 private:
  friend BpeVocabulary train_byte_bpe(const WordCounts&, std::int64_t);
  struct Hasher {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const;
  };
  std::unordered_map<std::string, std::int64_t, Hasher, std::equal_to<>> counts_;
};

/// Trains byte-level BPE (Sennrich et al. 2016, on bytes as GPT-2): ids 0..255 are the bytes in the order of GPT-2's
/// alphabet, then the merged tokens, the last id is <|endoftext|>. The pair that occurs most is merged next, of equal
/// pairs the one with the smaller ids, so the result depends on the counts alone (it is the one that Hugging Face's
/// BpeTrainer gives). A text whose pairs that occur twice do not fill `vocabulary_size` is refused with the number
/// that it reaches.
BpeVocabulary train_byte_bpe(const WordCounts& words, std::int64_t vocabulary_size);

}  // namespace paceline
