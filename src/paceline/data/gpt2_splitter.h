#pragma once

#include <cstddef>
#include <string_view>

namespace paceline {

/// GPT-2's pre-tokenisation, `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, by hand:
/// returns the end of the word that begins at `begin` (< text.size()). Every byte belongs to one word. Letters and
/// numbers are ICU's general categories (Unicode 15.0 with ICU 72: letters that came later count as "other"), `\s` is
/// Unicode's White_Space; ill-formed UTF-8 bytes count as "other".
std::size_t gpt2_word_end(std::string_view text, std::size_t begin);

}  // namespace paceline
