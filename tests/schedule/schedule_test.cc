#include "paceline/schedule/schedule.h"

#include "paceline/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> labels(const Schedule& schedule, std::size_t stage) {
  std::vector<std::string> result;
  for (const Action& action : schedule.ranks[stage]) result.push_back(action_label(action));
  return result;
}

TEST(TrainingSchedule, OneRankWithDataParallelism) {
  const Schedule schedule =
      build_training_schedule({.stages = 1, .micro_batches = 2, .buckets = {2}, .replicas_to_reduce = {true}});
  EXPECT_THAT(labels(schedule, 0),
              ElementsAre("load", "count_tokens", "forward m0", "backward m0", "forward m1", "backward m1",
                          "reduce_replicas", "reduce_bucket 0", "reduce_bucket 1", "wait_buckets", "gradient_norm",
                          "optimizer_step"));
}

TEST(TrainingSchedule, WithoutDataParallelismNothingIsReduced) {
  const Schedule schedule = build_training_schedule({.stages = 1, .micro_batches = 1});
  EXPECT_THAT(labels(schedule, 0), ElementsAre("load", "count_tokens", "forward m0", "backward m0", "gradient_norm",
                                               "optimizer_step"));
}

TEST(TrainingSchedule, OneForwardOneBackwardWarmsUpByTheStagesBehind) {
  const Schedule schedule = build_training_schedule({.stages = 2, .micro_batches = 3});
  EXPECT_THAT(labels(schedule, 0),
              ElementsAre("load", "count_tokens", "forward m0", "send_activation m0 to stage 1", "forward m1",
                          "send_activation m1 to stage 1", "receive_gradient m0 from stage 1", "backward m0",
                          "forward m2", "send_activation m2 to stage 1", "receive_gradient m1 from stage 1",
                          "backward m1", "receive_gradient m2 from stage 1", "backward m2", "gradient_norm",
                          "optimizer_step"));
  EXPECT_THAT(labels(schedule, 1),
              ElementsAre("load", "count_tokens", "receive_activation m0 from stage 0", "forward m0", "backward m0",
                          "send_gradient m0 to stage 0", "receive_activation m1 from stage 0", "forward m1",
                          "backward m1", "send_gradient m1 to stage 0", "receive_activation m2 from stage 0",
                          "forward m2", "backward m2", "send_gradient m2 to stage 0", "gradient_norm",
                          "optimizer_step"));
}

TEST(TrainingSchedule, GpipeRunsAllForwardsFirst) {
  const Schedule schedule =
      build_training_schedule({.kind = PipelineSchedule::gpipe, .stages = 2, .micro_batches = 2});
  EXPECT_THAT(labels(schedule, 1),
              ElementsAre("load", "count_tokens", "receive_activation m0 from stage 0", "forward m0",
                          "receive_activation m1 from stage 0", "forward m1", "backward m0",
                          "send_gradient m0 to stage 0", "backward m1", "send_gradient m1 to stage 0", "gradient_norm",
                          "optimizer_step"));
}

TEST(TrainingSchedule, StagesMayHaveDifferentNumbersOfBuckets) {
  const Schedule schedule = build_training_schedule({.stages = 2, .micro_batches = 1, .buckets = {1, 3}});
  const auto reductions = [&](std::size_t stage) {
    return std::count_if(schedule.ranks[stage].begin(), schedule.ranks[stage].end(),
                         [](const Action& action) { return action.kind == ActionKind::reduce_bucket; });
  };
  EXPECT_EQ(reductions(0), 1);
  EXPECT_EQ(reductions(1), 3);
  EXPECT_TRUE(check(schedule).valid) << check(schedule).error;
}

TEST(EvaluationSchedule, IsForwardsOnly) {
  const Schedule schedule = build_evaluation_schedule(2, 2);
  EXPECT_THAT(labels(schedule, 0), ElementsAre("load", "forward m0", "send_activation m0 to stage 1", "forward m1",
                                               "send_activation m1 to stage 1"));
  EXPECT_THAT(labels(schedule, 1), ElementsAre("load", "receive_activation m0 from stage 0", "forward m0",
                                               "receive_activation m1 from stage 0", "forward m1"));
}

TEST(Schedule, AsynchronousActionsAreOnTheCommunicationLane) {
  const Schedule schedule = build_training_schedule({.stages = 3, .micro_batches = 4, .buckets = {2, 2, 2}});
  for (const std::vector<Action>& rank : schedule.ranks) {
    for (const Action& action : rank) {
      const bool asynchronous = action.kind == ActionKind::send_activation ||
                                action.kind == ActionKind::send_gradient || action.kind == ActionKind::reduce_bucket;
      EXPECT_EQ(action.lane == Lane::communication, asynchronous) << action_label(action);
    }
  }
}

TEST(Schedule, RefusesNoStagesAndNoMicroBatches) {
  EXPECT_THROW(build_training_schedule({.stages = 0, .micro_batches = 1}), Error);
  EXPECT_THROW(build_training_schedule({.stages = 1, .micro_batches = 0}), Error);
  EXPECT_THROW(build_evaluation_schedule(1, 0), Error);
}

TEST(Schedule, KindsAreReadAndWritten) {
  for (const PipelineSchedule kind : {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
    EXPECT_EQ(parse_pipeline_schedule(pipeline_schedule_name(kind)), kind);
  }
  EXPECT_EQ(pipeline_schedule_name(PipelineSchedule::one_forward_one_backward), "1f1b");
  EXPECT_THROW(parse_pipeline_schedule("1F1B2"), Error);
}

}  // namespace
}  // namespace paceline
