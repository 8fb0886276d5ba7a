#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace paceline {

/// Returns `bytes` as valid UTF-8: each ill-formed sequence becomes one U+FFFD, cut as the WHATWG decoder cuts it (the
/// longest prefix of a valid sequence counts as one). Adds the number of replacements to `replaced`.
std::string repair_utf8(std::string bytes, std::size_t& replaced);

/// Appends the UTF-8 form of a code point.
void append_utf8(std::string& text, char32_t code_point);

/// The code point that starts at `position` of valid UTF-8, and moves `position` behind it.
char32_t next_code_point(std::string_view text, std::size_t& position);

}  // namespace paceline
