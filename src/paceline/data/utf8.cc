#include "paceline/data/utf8.h"

#include <unicode/utf8.h>

#include <cstdint>
#include <cstring>

namespace paceline {
namespace {

/// Length of the well-formed sequence at `position`, or 0.
std::size_t well_formed_length(const std::string& bytes, std::size_t position, std::size_t& ill_formed_length) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  std::int64_t next = static_cast<std::int64_t>(position);
  UChar32 code_point = 0;
  U8_NEXT(data, next, static_cast<std::int64_t>(bytes.size()), code_point);
  ill_formed_length = static_cast<std::size_t>(next) - position;
  return code_point < 0 ? 0 : ill_formed_length;
}

/// Position of the first byte at or after `position` that is not part of a well-formed sequence.
std::size_t first_ill_formed(const std::string& bytes, std::size_t position, std::size_t& length) {
  while (position < bytes.size()) {
    std::uint64_t eight = 0;
    if (position + 8 <= bytes.size()) {
      std::memcpy(&eight, bytes.data() + position, 8);
      if ((eight & 0x8080808080808080ULL) == 0) {
        position += 8;
        continue;
      }
    }
    if (static_cast<std::uint8_t>(bytes[position]) < 0x80) {
      ++position;
      continue;
    }
    const std::size_t valid = well_formed_length(bytes, position, length);
    if (valid == 0) return position;
    position += valid;
  }
  return position;
}

}  // namespace

std::string repair_utf8(std::string bytes, std::size_t& replaced) {
  std::size_t length = 0;
  std::size_t bad = first_ill_formed(bytes, 0, length);
  if (bad == bytes.size()) return bytes;
  std::string text;
  text.reserve(bytes.size() + 16);
  std::size_t begin = 0;
  while (bad < bytes.size()) {
    text.append(bytes, begin, bad - begin);
    text.append("\xEF\xBF\xBD");
    ++replaced;
    begin = bad + length;
    bad = first_ill_formed(bytes, begin, length);
  }
  text.append(bytes, begin, std::string::npos);
  return text;
}

void append_utf8(std::string& text, char32_t code_point) {
  char buffer[4];
  std::size_t length = 0;
  U8_APPEND_UNSAFE(buffer, length, static_cast<std::uint32_t>(code_point));
  text.append(buffer, length);
}

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  std::int64_t next = static_cast<std::int64_t>(position);
  UChar32 code_point = 0;
  U8_NEXT_OR_FFFD(data, next, static_cast<std::int64_t>(text.size()), code_point);
  position = static_cast<std::size_t>(next);
  return static_cast<char32_t>(code_point);
}

}  // namespace paceline
