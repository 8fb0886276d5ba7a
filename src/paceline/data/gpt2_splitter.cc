#include "paceline/data/gpt2_splitter.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <array>
#include <cstdint>

namespace paceline {
namespace {

enum class Kind : std::uint8_t { letter, number, white, other, not_ascii };

Kind kind_of(UChar32 code_point) {
  if (code_point < 0) return Kind::other;
  const auto mask = U_MASK(u_charType(code_point));
  if ((mask & U_GC_L_MASK) != 0) return Kind::letter;
  if ((mask & U_GC_N_MASK) != 0) return Kind::number;
  return u_isUWhiteSpace(code_point) != 0 ? Kind::white : Kind::other;
}

constexpr std::array<Kind, 256> first_byte_kinds() {
  std::array<Kind, 256> kinds{};
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    kinds[byte] = byte >= 0x80                                       ? Kind::not_ascii
                  : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ? Kind::letter
                  : c >= '0' && c <= '9'                             ? Kind::number
                  : c == ' ' || (c >= '\t' && c <= '\r')             ? Kind::white
                                                                     : Kind::other;
  }
  return kinds;
}
constexpr std::array<Kind, 256> kind_of_first_byte = first_byte_kinds();

/// Kind of the character at `position`, which moves behind it.
Kind next_kind(std::string_view text, std::size_t& position) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(text.data());
  const Kind ascii = kind_of_first_byte[data[position]];
  if (ascii != Kind::not_ascii) {
    ++position;
    return ascii;
  }
  std::int64_t next = static_cast<std::int64_t>(position);
  UChar32 code_point = 0;
  U8_NEXT(data, next, static_cast<std::int64_t>(text.size()), code_point);
  position = static_cast<std::size_t>(next);
  return kind_of(code_point);
}

/// Length of 's, 't, 'm, 'd, 'll, 've or 're behind an apostrophe, or 0.
std::size_t contraction_length(std::string_view rest) {
  if (rest.size() >= 2) {
    const char c = rest[1];
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
    const std::string_view two = rest.substr(1, 2);
    if (two == "ll" || two == "ve" || two == "re") return 3;
  }
  return 0;
}

}  // namespace

std::size_t gpt2_word_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const std::size_t length = contraction_length(text.substr(begin)); length > 0) return begin + length;
  }
  std::size_t end = begin;
  Kind kind = next_kind(text, end);
  if (kind == Kind::white) {
    std::size_t last = begin;  // where the last white character begins
    std::size_t behind = end;
    Kind following = kind;
    while (end < text.size()) {
      behind = end;
      following = next_kind(text, behind);
      if (following != Kind::white) break;
      last = end;
      end = behind;
    }
    if (end == text.size() || (last == begin && text[begin] != ' ')) return end;
    if (last > begin) return last;  // the last one goes with what follows
    kind = following;               // one space in front of a word
    end = behind;
  }
  while (end < text.size()) {
    std::size_t behind = end;
    if (next_kind(text, behind) != kind) break;
    end = behind;
  }
  return end;
}

}  // namespace paceline
