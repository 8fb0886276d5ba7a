#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace paceline {

/// GPT-2's printable stand-ins for the 256 bytes: 33..126, 161..172 and 174..255 stand for themselves, the other 68
/// bytes, in ascending order, are U+0100 and up. Tokens are written with them in tokenizer.json.
/// The bytes in the order of their stand-ins, which is the order of the first 256 token ids:
const std::array<unsigned char, 256>& bytes_in_alphabet_order();

/// "\n the" -> "ĊĠthe"
std::string to_byte_alphabet(std::string_view bytes);

/// The inverse; nothing if a character is no stand-in.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace paceline
