#pragma once

#include <string>

namespace paceline {

/// "512 B", "3.9 MiB", "1.25 GiB".
std::string bytes_text(double bytes);

/// "950 us", "12.3 ms", "4.56 s".
std::string seconds_text(double seconds);

}  // namespace paceline
