#pragma once

#include "paceline/plan/plan.h"

#include <string>
#include <vector>

namespace paceline {

/// A layout that cannot run, and the first reason with its numbers.
struct RefusedLayout {
  Layout layout;
  std::string reason;
};

struct LayoutSearch {
  std::vector<Plan> plans;  ///< of the layouts that fit, the shortest step first; ties: fewer stages first, then smaller tp
  std::vector<RefusedLayout> refused;
};

/// Plans every dp x tp x pp = ranks for the model, micro-batch and global batch of `settings`; accumulation follows from
/// dp. An explicit split of layers counts for the number of stages that it names.
LayoutSearch search_layouts(const StepSettings& settings, int ranks, const Place& place);

}  // namespace paceline
