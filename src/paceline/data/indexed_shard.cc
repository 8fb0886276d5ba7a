#include "paceline/data/indexed_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "paceline/base/error.h"

namespace paceline {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian and are read in place");

constexpr std::string_view magic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t index_version = 1;
constexpr std::size_t header_bytes = 34;

template <typename T>
T load(const MappedFile& file, std::size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

/// Calls `use` with a value of the element type's C++ type.
template <typename Use>
void with_token_type(TokenType type, Use&& use) {
  switch (type) {
    case TokenType::uint8: return use(std::uint8_t{});
    case TokenType::int8: return use(std::int8_t{});
    case TokenType::int16: return use(std::int16_t{});
    case TokenType::int32: return use(std::int32_t{});
    case TokenType::int64: return use(std::int64_t{});
    case TokenType::uint16: return use(std::uint16_t{});
  }
}

bool is_token_type(std::uint8_t code) { return (code >= 1 && code <= 5) || code == 8; }

}  // namespace

std::size_t token_bytes(TokenType type) {
  std::size_t bytes = 0;
  with_token_type(type, [&bytes](auto value) { bytes = sizeof(value); });
  return bytes;
}

TokenType token_type_for(std::int64_t vocabulary_size) {
  return vocabulary_size < 65500 ? TokenType::uint16 : TokenType::int32;
}

ShardWriter::ShardWriter(const std::string& prefix, std::int64_t vocabulary_size)
    : prefix_(prefix),
      vocabulary_size_(vocabulary_size),
      type_(token_type_for(vocabulary_size)),
      bin_(prefix + ".bin") {}

void ShardWriter::add_document(std::span<const std::int32_t> tokens) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail("{}.bin: document {} has {} tokens, the format holds 2^31 - 1 at most", prefix_, lengths_.size(),
         tokens.size());
  }
  const auto [minimum, maximum] = std::minmax_element(tokens.begin(), tokens.end());
  if (!tokens.empty()) {
    if (*minimum < 0 || *maximum >= vocabulary_size_) {
      fail("{}.bin: document {} holds the token id {}, the vocabulary is 0 to {}", prefix_, lengths_.size(),
           *minimum < 0 ? *minimum : *maximum, vocabulary_size_ - 1);
    }
    const bool first = summary_.tokens == 0;
    summary_.minimum_token = first ? *minimum : std::min<std::int64_t>(summary_.minimum_token, *minimum);
    summary_.maximum_token = std::max<std::int64_t>(summary_.maximum_token, *maximum);
  }
  packed_.resize(tokens.size() * token_bytes(type_));
  with_token_type(type_, [&](auto element) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      element = static_cast<decltype(element)>(tokens[i]);
      std::memcpy(packed_.data() + i * sizeof(element), &element, sizeof(element));
    }
  });
  bin_.write(packed_.data(), packed_.size());
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  summary_.tokens += static_cast<std::int64_t>(tokens.size());
}

ShardSummary ShardWriter::finish() {
  HashedFile idx(prefix_ + ".idx");
  const auto put = [&idx](auto value) { idx.write(&value, sizeof(value)); };
  idx.write(magic);
  put(index_version);
  put(static_cast<std::uint8_t>(type_));
  put(std::uint64_t{lengths_.size()});
  put(std::uint64_t{lengths_.size() + 1});
  idx.write(lengths_.data(), lengths_.size() * sizeof(std::int32_t));
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    put(pointer);
    pointer += length * static_cast<std::int64_t>(token_bytes(type_));
  }
  for (std::int64_t document = 0; document <= static_cast<std::int64_t>(lengths_.size()); ++document) put(document);
  summary_.documents = static_cast<std::int64_t>(lengths_.size());
  summary_.bin = bin_.commit();
  summary_.idx = idx.commit();
  return summary_;
}

IndexedShard::IndexedShard(const std::string& prefix) : prefix_(prefix), idx_(prefix + ".idx"), bin_(prefix + ".bin") {
  const std::string name = idx_.path().string();
  if (idx_.size() < header_bytes || std::memcmp(idx_.data(), magic.data(), magic.size()) != 0) {
    fail("{}: is not a Megatron index (it does not begin with MMIDIDX and a header of 34 bytes)", name);
  }
  if (const auto version = load<std::uint64_t>(idx_, 9); version != index_version) {
    fail("{}: index version {} is not known, only {}", name, version, index_version);
  }
  const auto code = load<std::uint8_t>(idx_, 17);
  if (!is_token_type(code)) fail("{}: element type code {} is not an integer type (1-5 or 8)", name, code);
  type_ = static_cast<TokenType>(code);
  const auto sequences = load<std::uint64_t>(idx_, 18);
  const auto entries = load<std::uint64_t>(idx_, 26);
  const std::uint64_t limit = idx_.size();
  const std::uint64_t expected = header_bytes + 12 * sequences + 8 * entries;
  // With sequence modes (multimodal data) one more byte a sequence.
  if (sequences > limit || entries > limit || (limit != expected && limit != expected + sequences)) {
    fail("{}: has {} bytes, but {} sequences and {} document entries need {}: the file is truncated or damaged", name,
         limit, sequences, entries, sequences > limit || entries > limit ? "more" : std::to_string(expected));
  }
  if (entries == 0) fail("{}: has no document entries, not even the first 0", name);
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(entries) - 1;
  tokens_ = check_index();
}

std::int64_t IndexedShard::check_index() const {
  const std::string name = idx_.path().string();
  const auto width = static_cast<std::int64_t>(token_bytes(type_));
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const auto length = load<std::int32_t>(idx_, header_bytes + 4 * static_cast<std::size_t>(i));
    if (length < 0) fail("{}: sequence {} has the length {}", name, i, length);
    const auto pointer = load<std::int64_t>(idx_, header_bytes + 4 * sequences_ + 8 * static_cast<std::size_t>(i));
    if (pointer != expected) {
      fail("{}: sequence {} begins at byte {}, but the lengths before it put it at {}", name, i, pointer, expected);
    }
    expected += length * width;
  }
  if (static_cast<std::int64_t>(bin_.size()) != expected) {
    fail("{}: has {} bytes, but its index asks for {}: the file is {}", bin_.path().string(), bin_.size(), expected,
         static_cast<std::int64_t>(bin_.size()) < expected ? "truncated" : "not the one that was indexed");
  }
  std::int64_t before = 0;
  for (std::int64_t entry = 0; entry <= documents_; ++entry) {
    const std::int64_t index = document_index(entry);
    if ((entry == 0 && index != 0) || index < before || index > sequences_) {
      fail("{}: document entry {} is {}, out of order (after {}, with {} sequences)", name, entry, index, before,
           sequences_);
    }
    before = index;
  }
  if (before != sequences_) {
    fail("{}: the documents end at sequence {}, but there are {}", name, before, sequences_);
  }
  return expected / width;
}

std::int64_t IndexedShard::sequence_begin(std::int64_t sequence) const {
  if (sequence == sequences_) return tokens_;
  const auto offset = header_bytes + 4 * static_cast<std::size_t>(sequences_) + 8 * static_cast<std::size_t>(sequence);
  return load<std::int64_t>(idx_, offset) / static_cast<std::int64_t>(token_bytes(type_));
}

std::int64_t IndexedShard::document_index(std::int64_t entry) const {
  return load<std::int64_t>(
      idx_, header_bytes + 12 * static_cast<std::size_t>(sequences_) + 8 * static_cast<std::size_t>(entry));
}

std::int64_t IndexedShard::document_begin(std::int64_t document) const {
  PACELINE_CHECK(document >= 0 && document <= documents_);
  return sequence_begin(document_index(document));
}

std::int64_t IndexedShard::document_of(std::int64_t token) const {
  PACELINE_CHECK(token >= 0 && token < tokens_);
  std::int64_t low = 0;  // the last document that begins at or before the token
  std::int64_t high = documents_;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void IndexedShard::read(std::int64_t begin, std::span<std::int64_t> out) const {
  PACELINE_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= tokens_);
  with_token_type(type_, [&](auto element) {
    const std::byte* source = bin_.data() + static_cast<std::size_t>(begin) * sizeof(element);
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&element, source + i * sizeof(element), sizeof(element));
      out[i] = static_cast<std::int64_t>(element);
    }
  });
}

std::vector<std::int32_t> IndexedShard::read_document(std::int64_t document) const {
  const std::int64_t begin = document_begin(document);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(document_begin(document + 1) - begin));
  read(begin, wide);
  return {wide.begin(), wide.end()};
}

void verify_token_range(const IndexedShard& shard, std::int64_t vocabulary_size) {
  std::array<std::int64_t, 4096> block{};
  for (std::int64_t begin = 0; begin < shard.tokens(); begin += block.size()) {
    const auto count = std::min<std::int64_t>(block.size(), shard.tokens() - begin);
    const std::span tokens(block.data(), static_cast<std::size_t>(count));
    shard.read(begin, tokens);
    for (std::int64_t i = 0; i < count; ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocabulary_size) {
        fail("{}: token {} (document {}) has the id {}, but the vocabulary is 0 to {}", shard.bin_path().string(),
             begin + i, shard.document_of(begin + i), tokens[i], vocabulary_size - 1);
      }
    }
  }
}

}  // namespace paceline
