#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace paceline {

/// The known name with the smallest edit distance to `wrong` (the first of equals); empty if `known` is.
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& known);

}  // namespace paceline
