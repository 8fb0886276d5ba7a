#include "paceline/data/byte_alphabet.h"

#include "paceline/data/utf8.h"

namespace paceline {
namespace {

constexpr int largest_stand_in = 0x100 + 68;

bool stands_for_itself(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int, largest_stand_in> byte{};
  std::array<unsigned char, 256> order{};

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;
    for (int value = 0; value < 256; ++value) {
      character[value] = stands_for_itself(value) ? static_cast<char32_t>(value) : next++;
      byte[character[value]] = value;
    }
    int position = 0;
    for (const int value : byte) {
      if (value >= 0) order[position++] = static_cast<unsigned char>(value);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

const std::array<unsigned char, 256>& bytes_in_alphabet_order() { return alphabet().order; }

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) append_utf8(text, alphabet().character[static_cast<unsigned char>(c)]);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (std::size_t position = 0; position < text.size();) {
    const char32_t character = next_code_point(text, position);
    if (character >= largest_stand_in || alphabet().byte[character] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().byte[character]);
  }
  return bytes;
}

}  // namespace paceline
