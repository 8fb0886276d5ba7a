#pragma once

#include <string>

namespace paceline {

/// 128 random bits in hexadecimal: what tells a run's own ranks from strangers.
std::string random_run_id();

}  // namespace paceline
