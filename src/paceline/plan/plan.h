#pragma once

#include "paceline/plan/memory_model.h"
#include "paceline/plan/simulate.h"

#include <string>
#include <vector>

namespace paceline {

/// What is predicted for one layout of a run.
struct Plan {
  TrainingStep step;
  Place place;
  int threads_per_rank = 1;
  Simulation simulation;
  std::vector<StageMemory> memory;    ///< of each stage
  std::size_t largest_stage = 0;      ///< the stage whose ranks hold the most
  std::size_t slowest_stage = 0;      ///< the stage that waits least: the step's length is its doing
  double model_flops_per_token = 0;
  double peak_flops_per_s = 0;        ///< of all ranks' cores together: the fastest measured product
  double bubble = 0;                  ///< idle share of the schedule by itself, equal stages, free transfers

  double step_time_s() const { return simulation.step_time_s; }
  double tokens_per_s() const;
  double mfu() const;
  double memory_of_all_ranks() const;
  const StageMemory& largest_memory() const { return memory[largest_stage]; }
  /// How many times longer than their cost a stage's actions of one kind take, because ranks share cores.
  double slowdown(const CostModel& costs, int stage, ActionKind kind) const;
};

/// Builds, costs and plays the step. Refuses layouts that the model or the batch does not allow, and those that need
/// more memory than the machine has.
Plan make_plan(const StepSettings& settings, const Place& place);

}  // namespace paceline
