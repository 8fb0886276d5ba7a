#include "paceline/plan/search.h"

#include "paceline/base/error.h"

#include <algorithm>

namespace paceline {

LayoutSearch search_layouts(const StepSettings& settings, int ranks, const Place& place) {
  LayoutSearch search;
  for (int pp = 1; pp <= ranks; ++pp) {
    if (ranks % pp != 0) continue;
    for (int tp = 1; tp <= ranks / pp; ++tp) {
      if (ranks / pp % tp != 0) continue;
      StepSettings candidate = settings;
      candidate.parallel.layout = {.dp = ranks / pp / tp, .tp = tp, .pp = pp};
      if (static_cast<int>(candidate.parallel.layers_per_stage.size()) != pp) candidate.parallel.layers_per_stage.clear();
      try {
        candidate.batch = resolve_batch(settings.batch.global, settings.batch.micro, std::nullopt, candidate.parallel.layout.dp);
        search.plans.push_back(make_plan(candidate, place));
      } catch (const Error& error) {
        search.refused.push_back({candidate.parallel.layout, error.what()});
      }
    }
  }
  std::stable_sort(search.plans.begin(), search.plans.end(),
                   [](const Plan& a, const Plan& b) { return a.step_time_s() < b.step_time_s(); });
  return search;
}

}  // namespace paceline
