#include "paceline/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "paceline/base/error.h"

namespace paceline {
namespace {

TEST(LearningRate, CosineAfterWarmup) {
  const LearningRateSettings s{.peak = 1, .minimum = 0.1, .warmup_steps = 4, .total_steps = 20};
  EXPECT_DOUBLE_EQ(learning_rate_at(1, s), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(3, s), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate_at(4, s), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(12, s), 0.55);                                // half-way
  EXPECT_DOUBLE_EQ(learning_rate_at(8, s), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2);  // a quarter
  EXPECT_DOUBLE_EQ(learning_rate_at(20, s), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(21, s), 0.1);
}

// A run that is prolonged from 20 to 40 steps: step 21 is what the longer schedule says.
TEST(LearningRate, DependsOnStepAndSettingsOnly) {
  LearningRateSettings s{.peak = 1, .minimum = 0.1, .warmup_steps = 4, .total_steps = 20};
  std::vector<double> undisturbed;
  for (int64_t step = 1; step <= 20; ++step) undisturbed.push_back(learning_rate_at(step, s));
  for (const int64_t stop : {3, 4, 12})
    for (int64_t step = stop + 1; step <= 20; ++step) EXPECT_EQ(learning_rate_at(step, s), undisturbed[step - 1]);
  s.total_steps = 40;
  EXPECT_DOUBLE_EQ(learning_rate_at(21, s), 0.1 + 0.9 * (1 + std::cos(M_PI * 17 / 36)) / 2);
  s.total_steps = 20;
  s.peak = 0.5;
  EXPECT_DOUBLE_EQ(learning_rate_at(12, s), 0.3);
}

TEST(LearningRate, LinearConstantAndWsd) {
  LearningRateSettings s{.peak = 2, .minimum = 0, .warmup_steps = 0, .total_steps = 10, .shape = DecayShape::linear};
  EXPECT_DOUBLE_EQ(learning_rate_at(1, s), 1.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(5, s), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(10, s), 0);
  s.shape = DecayShape::constant;
  s.warmup_steps = 2;
  EXPECT_DOUBLE_EQ(learning_rate_at(1, s), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(9, s), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(100, s), 2);
  s.shape = DecayShape::wsd;
  s.decay_steps = 4;
  s.minimum = 1;
  EXPECT_DOUBLE_EQ(learning_rate_at(6, s), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(8, s), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(10, s), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(11, s), 1);
}

TEST(LearningRate, ImpossibleSchedulesAreRefused) {
  EXPECT_NO_THROW(check_learning_rate({.warmup_steps = 5, .total_steps = 5}));
  EXPECT_THROW(check_learning_rate({.peak = -1, .total_steps = 5}), Error);
  EXPECT_THROW(check_learning_rate({.peak = NAN, .total_steps = 5}), Error);
  EXPECT_THROW(check_learning_rate({.peak = 1, .minimum = 2, .total_steps = 5}), Error);
  EXPECT_THROW(check_learning_rate({.warmup_steps = 6, .total_steps = 5}), Error);
  EXPECT_THROW(check_learning_rate({.total_steps = 0}), Error);
  EXPECT_THROW(
      check_learning_rate({.warmup_steps = 2, .total_steps = 5, .decay_steps = 4, .shape = DecayShape::wsd}), Error);
}

}  // namespace
}  // namespace paceline
