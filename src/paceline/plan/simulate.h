#pragma once

#include "paceline/plan/cost_model.h"

#include <vector>

namespace paceline {

/// When one action of a stage's list ran.
struct SimulatedAction {
  double start_s = 0;     ///< after the start of the step
  double duration_s = 0;  ///< waits included; of a bucket's reduction: on the communication lane
};

/// Where a stage's step time goes; the parts add up to the step time.
struct StageUse {
  double compute_s = 0;        ///< forward and backward passes
  double communication_s = 0;  ///< messages that nothing hides: tensor group, transfers, reductions
  double update_s = 0;         ///< gradient norm and optimiser
  double waiting_s = 0;        ///< for other stages: the pipeline's bubble and uneven stages
};

struct Simulation {
  double step_time_s = 0;
  std::vector<std::vector<SimulatedAction>> stages;  ///< [stage][action], indices of the schedule's lists
  std::vector<StageUse> use;                         ///< of each stage
};

/// Plays the schedule against the cost model: receives wait for their message, reductions of buckets run beside the last
/// backward, the gradient norm waits for all stages. All ranks of a stage do the same at the same time. Ranks share the
/// machine's cores: where more threads compute than there are cores, each gets its share, so that a step is bound by
/// the total work and a waiting rank leaves its cores to the others.
Simulation simulate(const TrainingStep& step, const CostModel& costs, const Place& place);

}  // namespace paceline
