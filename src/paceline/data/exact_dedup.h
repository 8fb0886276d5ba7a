#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_set>

namespace paceline {

/// 128 bits that stand for a document's content.
using ContentHash = std::array<std::uint64_t, 2>;

/// XXH3 128 bit of the text with runs of ASCII white space taken as one space and none at either end: two documents
/// that differ only in their line breaks are the same content. At 10^9 documents the chance that any two different
/// ones collide is below 10^-20.
ContentHash content_hash(std::string_view text);

/// Tells first copies from later ones; the caller passes documents in input order.
class ExactDedup {
 public:
  /// True for the first document with this content.
  bool is_first(const ContentHash& hash) { return seen_.insert(hash).second; }
  std::size_t distinct() const { return seen_.size(); }

 private:
  struct Hasher {
    std::size_t operator()(const ContentHash& hash) const { return hash[0]; }
  };
  std::unordered_set<ContentHash, Hasher> seen_;
};

}  // namespace paceline
