#pragma once

#include <string_view>

namespace paceline {

/// The number of the first line of a TOML text with more than `most_dots_in_a_line` dots, or 0. The TOML library bounds
/// the nesting of brackets but not that of dotted keys (a.a.a...), and frees tables by recursion, so that a long key
/// would end the program. Ours have one dot.
int line_with_too_many_dots(std::string_view toml);

inline constexpr int most_dots_in_a_line = 1000;

}  // namespace paceline
