#include "paceline/plan/simulate.h"

#include "planned_models.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

namespace paceline {
namespace {

/// The longest path through the schedule with each action's own cost and free cores, computed backwards by need.
double longest_path(const TrainingStep& step, const CostModel& costs) {
  std::map<std::pair<int, int>, double> ends;
  const std::function<double(int, int)> end_of = [&](int stage, int index) -> double {
    if (index < 0) return 0;
    const auto found = ends.find({stage, index});
    if (found != ends.end()) return found->second;
    const std::vector<Action>& actions = step.schedule.ranks[static_cast<std::size_t>(stage)];
    const Action& action = actions[static_cast<std::size_t>(index)];
    double start = end_of(stage, index - 1);
    if (action.kind == ActionKind::receive_activation || action.kind == ActionKind::receive_gradient) {
      const std::vector<Action>& other = step.schedule.ranks[static_cast<std::size_t>(action.peer)];
      const ActionKind sent = action.kind == ActionKind::receive_activation ? ActionKind::send_activation
                                                                            : ActionKind::send_gradient;
      for (std::size_t i = 0; i < other.size(); ++i) {
        if (other[i].kind == sent && other[i].micro_batch == action.micro_batch) {
          start = std::max(start, end_of(action.peer, static_cast<int>(i)) + costs.transfer_s());
        }
      }
      return ends[{stage, index}] = start;
    }
    const Duration cost = costs.action(stage, action);
    if (action.kind == ActionKind::gradient_norm) {
      for (int other = 0; other < static_cast<int>(step.stages.size()); ++other) {
        const std::vector<Action>& list = step.schedule.ranks[static_cast<std::size_t>(other)];
        for (std::size_t i = 0; i < list.size(); ++i) {
          if (list[i].kind != ActionKind::gradient_norm) continue;
          start = std::max(start, end_of(other, static_cast<int>(i) - 1));
        }
      }
    }
    return ends[{stage, index}] = start + cost.total();
  };
  double end = 0;
  for (int stage = 0; stage < static_cast<int>(step.stages.size()); ++stage) {
    end = std::max(end, end_of(stage, static_cast<int>(step.schedule.ranks[static_cast<std::size_t>(stage)].size()) - 1));
  }
  return end;
}

double work(const TrainingStep& step, const CostModel& costs) {
  double seconds = 0;
  for (int stage = 0; stage < static_cast<int>(step.stages.size()); ++stage) {
    for (const Action& action : step.schedule.ranks[static_cast<std::size_t>(stage)]) {
      seconds += costs.action(stage, action).compute_s;
    }
  }
  return seconds;
}

TEST(Simulation, OneRankTakesTheSumOfItsActions) {
  const TrainingStep step = build_training_step(tiny_step({}, 2, 3));
  const Place place = second_per_call(1);
  const CostModel costs(step, place);
  // A layer has 11 operations; its backward calls two halves of 4 products, 2 norms, rope, attention and swiglu, and
  // nothing for sums. Around the layers: embedding, final norm, head and loss.
  const double forward = 2 * 11 + 4, backward = 2 * (2 * 4 + 5) + 1 + 1 + 2;
  EXPECT_DOUBLE_EQ(costs.action(0, {.kind = ActionKind::forward}).compute_s, forward);
  EXPECT_DOUBLE_EQ(costs.action(0, {.kind = ActionKind::backward}).compute_s, backward);
  EXPECT_NEAR(simulate(step, costs, place).step_time_s, 3 * (forward + backward), 1e-9);
}

TEST(Simulation, WithCoresForAllItIsTheLongestPath) {
  for (const PipelineSchedule kind : {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
    for (const int stages : {1, 2, 3, 4}) {
      for (const int micro_batches : {1, 2, 3, 7}) {
        StepSettings settings = tiny_step({.pp = stages}, 5, micro_batches);
        settings.schedule = kind;
        const TrainingStep step = build_training_step(settings);
        Place place = second_per_call(8);
        for (MessageTime& message : place.profile.messages) message.seconds = 3.5;
        const CostModel costs(step, place);
        EXPECT_NEAR(simulate(step, costs, place).step_time_s, longest_path(step, costs), 1e-6)
            << pipeline_schedule_name(kind) << " " << stages << " x " << micro_batches;
      }
    }
  }
}

TEST(Simulation, OnOneCoreItIsTheTotalWork) {
  for (const int stages : {2, 4}) {
    const TrainingStep step = build_training_step(tiny_step({.pp = stages}, 4, 6));
    const Place place = second_per_call(1);
    const CostModel costs(step, place);
    EXPECT_NEAR(simulate(step, costs, place).step_time_s, work(step, costs), 1e-6) << stages;
  }
  const TrainingStep step = build_training_step(tiny_step({.dp = 4}, 2, 1));
  const Place one = second_per_call(1), two = second_per_call(2), four = second_per_call(4);
  const auto seconds = [&](const Place& place) { return simulate(step, CostModel(step, place), place).step_time_s; };
  EXPECT_NEAR(seconds(one), 4 * seconds(four), 1e-6);
  EXPECT_NEAR(seconds(two), 2 * seconds(four), 1e-6);
}

TEST(Simulation, PartsOfAStageAddUpToTheStep) {
  const TrainingStep step = build_training_step(tiny_step({.dp = 2, .tp = 2, .pp = 2}, 3, 4));
  Place place = second_per_call(3);
  for (MessageTime& message : place.profile.messages) message.seconds = 0.25;
  const CostModel costs(step, place);
  const Simulation played = simulate(step, costs, place);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const StageUse& use = played.use[stage];
    EXPECT_NEAR(use.compute_s + use.communication_s + use.update_s + use.waiting_s, played.step_time_s, 1e-9);
    EXPECT_GT(use.compute_s, 0);
    EXPECT_GT(use.communication_s, 0);
    double end = 0;
    const std::vector<Action>& actions = step.schedule.ranks[stage];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const SimulatedAction& action = played.stages[stage][i];
      if (actions[i].lane == Lane::compute) {
        EXPECT_NEAR(action.start_s, end, 1e-9) << action_label(actions[i]);
        end = action.start_s + action.duration_s;
      } else if (actions[i].kind != ActionKind::reduce_bucket) {
        end = std::max(end, action.start_s + action.duration_s);
      }
    }
    EXPECT_NEAR(end, played.step_time_s, 1e-9);
  }
}

TEST(Simulation, BucketsAreReducedBesideTheLastBackward) {
  StepSettings settings = tiny_step({.dp = 2}, 2, 2);
  settings.bucket_bytes = 256;
  const TrainingStep step = build_training_step(settings);
  Place place = second_per_call(2);
  for (MessageTime& message : place.profile.messages) {
    if (message.operation == "all_reduce") message.seconds = 1;
  }
  const CostModel costs(step, place);
  const Simulation played = simulate(step, costs, place);
  const std::vector<Action>& actions = step.schedule.ranks[0];
  std::size_t first = 0, last_backward = 0, wait = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::reduce_bucket && actions[i].bucket == 0) first = i;
    if (actions[i].kind == ActionKind::backward) last_backward = i;
    if (actions[i].kind == ActionKind::wait_buckets) wait = i;
  }
  const SimulatedAction& backward = played.stages[0][last_backward];
  EXPECT_GT(played.stages[0][first].start_s, backward.start_s);
  EXPECT_LT(played.stages[0][first].start_s, backward.start_s + backward.duration_s);
  EXPECT_NEAR(played.stages[0][wait].duration_s, 1, 1e-6);  // only the last bucket's reduction is not hidden
}

}  // namespace
}  // namespace paceline
