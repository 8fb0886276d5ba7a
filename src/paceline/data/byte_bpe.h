#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace paceline {

inline constexpr std::string_view end_of_text_token = "<|endoftext|>";

/// A token that is matched in the text as a whole, before the merges.
struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = true;
};

/// The data of a BPE tokenizer.
struct BpeVocabulary {
  struct Merge {
    std::int32_t left, right, merged;
  };
  std::vector<std::string> tokens;  ///< bytes of each id; empty where the id is not used
  std::vector<Merge> merges;        ///< by rank
  std::vector<AddedToken> added;
  bool byte_level = true;      ///< GPT-2's words, symbols are bytes; otherwise the text is one word of characters
  bool ignore_merges = false;  ///< a word that is a token is that token, whatever the merges say
  std::int32_t unknown_id =
      -1;  ///< for a character without a token, when not byte_level; -1: such characters are dropped
};

class BpeEncoder;

/// A BPE tokenizer. Immutable: one object serves all threads.
class ByteBpe {
 public:
  explicit ByteBpe(BpeVocabulary vocabulary);
  ByteBpe(ByteBpe&&) = default;
  ByteBpe(const ByteBpe&) = delete;

  /// Largest id + 1.
  std::int64_t vocabulary_size() const { return static_cast<std::int64_t>(vocabulary_.tokens.size()); }
  std::int32_t end_of_text_id() const;
  std::optional<std::int32_t> find_token(std::string_view bytes) const;
  const BpeVocabulary& vocabulary() const { return vocabulary_; }

  /// Ids of ordinary text: "<|endoftext|>" inside it is text as well.
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Ids as Hugging Face tokenizers gives them: added tokens are found first, leftmost and longest.
  std::vector<std::int32_t> encode_with_added_tokens(std::string_view text) const;
  /// The bytes of the tokens; one token alone need not be valid UTF-8. Ids that are not in the vocabulary are refused.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

 private:
  friend class BpeEncoder;

  struct Found {
    std::int32_t rank = -1;
    std::int32_t merged = -1;
  };
  Found find_merge(std::int32_t left, std::int32_t right) const;
  void first_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const;

  struct MergeSlot {
    std::uint64_t pair = ~std::uint64_t{0};
    Found found;
  };
  BpeVocabulary vocabulary_;
  std::vector<MergeSlot> merge_slots_;  ///< open addressing, a power of two, at most half full
  int merge_shift_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::string_view, std::int32_t> ids_;  ///< views of vocabulary_.tokens
};

/// Encodes with a cache of the words seen last (2 MiB, whatever the text, made when the text is long). One per thread.
class BpeEncoder {
 public:
  explicit BpeEncoder(const ByteBpe& tokenizer);
  /// Appends the ids of ordinary text.
  void encode(std::string_view text, std::vector<std::int32_t>& ids);

 private:
  static constexpr std::size_t cached_bytes = 26;
  static constexpr std::size_t cached_ids = 9;
  struct CachedWord {
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    char bytes[cached_bytes];
    std::int32_t ids[cached_ids];
  };
  static_assert(sizeof(CachedWord) == 64);

  void encode_word(std::string_view word, std::vector<std::int32_t>& ids);
  void merge_word(std::string_view word);
  void merge_short();
  void merge_long();

  const ByteBpe& tokenizer_;
  std::size_t bytes_seen_ = 0;
  std::vector<CachedWord> cache_;
  std::vector<std::int32_t> symbols_;
  std::vector<ByteBpe::Found> pairs_;
};

}  // namespace paceline
