#include "paceline/plan/plan.h"

#include "paceline/base/error.h"
#include "paceline/plan/quantity_text.h"

#include <algorithm>

namespace paceline {

double Plan::tokens_per_s() const { return static_cast<double>(step.settings.tokens()) / step_time_s(); }

double Plan::mfu() const { return model_flops_per_token * tokens_per_s() / peak_flops_per_s; }

double Plan::memory_of_all_ranks() const {
  const Layout& layout = step.settings.parallel.layout;
  double bytes = 0;
  for (const StageMemory& stage : memory) bytes += stage.total() * layout.dp * layout.tp;
  return bytes;
}

double Plan::slowdown(const CostModel& costs, int stage, ActionKind kind) const {
  const std::vector<Action>& actions = step.schedule.ranks[static_cast<std::size_t>(stage)];
  double planned = 0, played = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind != kind) continue;
    planned += costs.action(stage, actions[i]).total();
    played += simulation.stages[static_cast<std::size_t>(stage)][i].duration_s;
  }
  return planned > 0 ? played / planned : 1.0;
}

Plan make_plan(const StepSettings& settings, const Place& place) {
  Plan plan{.step = build_training_step(settings), .place = place};
  for (std::size_t stage = 0; stage < plan.step.stages.size(); ++stage) {
    plan.memory.push_back(stage_memory(plan.step, static_cast<int>(stage)));
    if (plan.memory[stage].total() > plan.largest_memory().total()) plan.largest_stage = stage;
  }
  if (place.memory_bytes > 0 && plan.memory_of_all_ranks() > static_cast<double>(place.memory_bytes)) {
    const Layout& layout = settings.parallel.layout;
    refuse("needs {} on {} ranks ({} on the largest, {} of it activations), and the machine has {}: a smaller "
           "train.micro_batch_size or train.sequence_length needs less",
           bytes_text(plan.memory_of_all_ranks()), layout.world_size(),
           bytes_text(plan.largest_memory().total()), bytes_text(plan.largest_memory().activations),
           bytes_text(static_cast<double>(place.memory_bytes)));
  }
  const CostModel costs(plan.step, place);
  plan.threads_per_rank = costs.threads_per_rank();
  plan.simulation = simulate(plan.step, costs, place);
  for (std::size_t stage = 0; stage < plan.simulation.use.size(); ++stage) {
    if (plan.simulation.use[stage].waiting_s < plan.simulation.use[plan.slowest_stage].waiting_s) plan.slowest_stage = stage;
  }
  plan.bubble = check(plan.step.schedule).bubble;
  plan.model_flops_per_token = model_flops_per_token(settings.model, settings.sequence_length);
  const int ranks = settings.parallel.layout.world_size();
  const int at_once = std::clamp(place.cores / plan.threads_per_rank, 1, ranks);
  plan.peak_flops_per_s =
      at_once * place.profile.peak_flops_per_s(settings.precision, {.threads = plan.threads_per_rank, .ranks = at_once});
  return plan;
}

}  // namespace paceline
