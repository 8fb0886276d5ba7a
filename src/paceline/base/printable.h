#pragma once

#include <string>
#include <string_view>

namespace paceline {

/// A name from a foreign file as part of a one-line message: no control characters, 300 bytes at most.
std::string printable(std::string_view name);

}  // namespace paceline
