#pragma once

namespace paceline {

/// The program's version, as every file that it writes carries it.
inline constexpr const char* program_version = PACELINE_VERSION;

}  // namespace paceline
