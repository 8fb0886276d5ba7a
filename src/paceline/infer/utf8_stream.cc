#include "paceline/infer/utf8_stream.h"

#include "paceline/data/utf8.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace paceline {
namespace {

/// Bytes that a sequence with this first byte has; 1 for bytes that begin none.
std::size_t sequence_bytes(unsigned char first) {
  if (first >= 0xF0 && first <= 0xF4) return 4;
  if (first >= 0xE0) return first <= 0xEF ? 3 : 1;
  return first >= 0xC2 ? 2 : 1;
}

/// How many bytes at the end begin a sequence that more bytes may complete.
std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    return sequence_bytes(byte) > back ? back : 0;
  }
  return 0;
}

std::string repaired(std::string bytes) {
  std::size_t replaced = 0;
  return repair_utf8(std::move(bytes), replaced);
}

}  // namespace

std::string Utf8Stream::add(std::string_view bytes) {
  held_ += bytes;
  const std::size_t complete = held_.size() - unfinished_bytes(held_);
  std::string text = held_.substr(0, complete);
  held_.erase(0, complete);
  return repaired(std::move(text));
}

std::string Utf8Stream::finish() { return repaired(std::exchange(held_, {})); }

}  // namespace paceline
