#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "paceline/data/hashed_file.h"
#include "paceline/data/mapped_file.h"

namespace paceline {

/// Element types of a shard's tokens; the values are the codes of Megatron's index.
enum class TokenType : std::uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

std::size_t token_bytes(TokenType type);

/// Megatron's rule: two bytes below a vocabulary of 65,500, else four.
TokenType token_type_for(std::int64_t vocabulary_size);

/// What a written shard holds.
struct ShardSummary {
  FileDigest bin;
  FileDigest idx;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t minimum_token = 0;
  std::int64_t maximum_token = 0;
};

/// Writes `<prefix>.bin` and `<prefix>.idx` in Megatron's layout, one sequence a document. Both appear when finish()
/// is called, the index last. A token outside the vocabulary is refused.
class ShardWriter {
 public:
  ShardWriter(const std::string& prefix, std::int64_t vocabulary_size);
  void add_document(std::span<const std::int32_t> tokens);
  ShardSummary finish();

 private:
  std::string prefix_;
  std::int64_t vocabulary_size_;
  TokenType type_;
  HashedFile bin_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::byte> packed_;
  ShardSummary summary_;
};

/// Reads a shard through two mapped files; nothing is copied. Opening checks the index whole (magic, version, element
/// type, sizes, pointers); an Error names the file and what is wrong with it. Thread-safe.
class IndexedShard {
 public:
  explicit IndexedShard(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }

  /// Position in the packed stream of a document's first token; `documents()` gives tokens().
  std::int64_t document_begin(std::int64_t document) const;
  /// The document that holds a token, O(log documents).
  std::int64_t document_of(std::int64_t token) const;
  /// Tokens [begin, begin + out.size()) of the packed stream.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  std::vector<std::int32_t> read_document(std::int64_t document) const;
  std::filesystem::path bin_path() const { return bin_.path(); }

 private:
  std::int64_t sequence_begin(std::int64_t sequence) const;
  std::int64_t document_index(std::int64_t entry) const;
  /// Number of tokens.
  std::int64_t check_index() const;

  std::string prefix_;
  MappedFile idx_;
  MappedFile bin_;
  TokenType type_ = TokenType::uint16;
  std::int64_t sequences_ = 0;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
};

/// Holds every token of the shard against [0, vocabulary_size); an Error names file, position and id.
void verify_token_range(const IndexedShard& shard, std::int64_t vocabulary_size);

}  // namespace paceline
