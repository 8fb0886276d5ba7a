#include "paceline/trace/step_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace paceline {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(StepParts, OfActionKinds) {
  EXPECT_EQ(step_part_of("load"), StepPart::load);
  EXPECT_EQ(step_part_of("forward"), StepPart::forward);
  EXPECT_EQ(step_part_of("backward_weight"), StepPart::backward);
  EXPECT_EQ(step_part_of("receive_gradient"), StepPart::exchange);
  EXPECT_EQ(step_part_of("send_activation"), StepPart::exchange);
  EXPECT_EQ(step_part_of("reduce_bucket"), StepPart::reduce);
  EXPECT_EQ(step_part_of("wait_buckets"), StepPart::reduce);
  EXPECT_EQ(step_part_of("count_tokens"), StepPart::reduce);
  EXPECT_EQ(step_part_of("gradient_norm"), StepPart::gradient_norm);
  EXPECT_EQ(step_part_of("optimizer_step"), StepPart::optimizer_step);
  EXPECT_EQ(step_part_of("evaluate"), StepPart::evaluate);
  EXPECT_EQ(step_part_of("checkpoint"), StepPart::checkpoint);
  EXPECT_EQ(step_part_of("something new"), StepPart::other);
}

// compute:        [0 .. 4) kind 0, inside it [1 .. 2) kind 1;  [7 .. 12) kind 0, cut by the step's end at 10
// communication:  [3 .. 6) kind 2, seen only where nothing computes
// host:           [5 .. 6.5) kind 3, seen only where the others are quiet
TEST(StepParts, EachMomentIsCountedOnce) {
  const std::vector<double> times = exposed_times(
      {{7, 12, 0, 0}, {0, 4, 0, 0}, {1, 2, 0, 1}, {3, 6, 1, 2}, {5, 6.5, 2, 3}, {20, 30, 0, 1}, {-2, -1, 0, 1}}, 10, 4);
  EXPECT_THAT(times, ElementsAre(DoubleEq(6), DoubleEq(1), DoubleEq(2), DoubleEq(0.5), DoubleEq(0.5)));
  EXPECT_DOUBLE_EQ(std::accumulate(times.begin(), times.end(), 0.0), 10);
}

TEST(StepParts, EqualSpansAndNone) {
  EXPECT_THAT(exposed_times({}, 2, 1), ElementsAre(0.0, 2.0));
  // Of two spans with one start the shorter is inside.
  EXPECT_THAT(exposed_times({{0, 2, 0, 0}, {0, 1, 0, 1}}, 2, 2), ElementsAre(1.0, 1.0, 0.0));
}

}  // namespace
}  // namespace paceline
