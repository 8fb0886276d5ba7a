#pragma once

#include <cstdint>
#include <string>

namespace paceline {

/// Bytes of memory that this process may use: the machine's, cut to its control group's limit (v2 `memory.max`). The
/// group's files are read below `root`. 0 where the system does not say.
std::int64_t usable_memory_bytes(const std::string& root = "/");

}  // namespace paceline
