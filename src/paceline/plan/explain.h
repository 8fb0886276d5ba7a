#pragma once

#include "paceline/plan/search.h"

#include <string>

namespace paceline {

/// Why the first plan of a search is the fastest: where its step goes, and what the next one spends more on.
std::string explain_best(const LayoutSearch& search);

/// One plan in lines for a reader: time by part, memory by class with the moment of its peak, the batch and its bubble.
std::string explain_plan(const Plan& plan);

/// Which machine the times are for, and what to do when nothing was measured.
std::string explain_profile(const Place& place);

}  // namespace paceline
