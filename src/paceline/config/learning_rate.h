#pragma once

#include <cstdint>

namespace paceline {

/// How the rate falls after the warm-up. `wsd` stays at the peak and falls linearly in the last `decay_steps`.
enum class DecayShape { constant, cosine, linear, wsd };

struct LearningRateSettings {
  double peak = 1e-3;
  double minimum = 0;        ///< the rate at `total_steps` and after
  int64_t warmup_steps = 0;  ///< linear from peak / warmup_steps at step 1 to the peak at step warmup_steps
  int64_t total_steps = 1;
  int64_t decay_steps = 0;   ///< `wsd` only
  DecayShape shape = DecayShape::cosine;
};

/// The rate of a step, 1 being the first: a pure function, so that a resumed run goes on exactly where it stopped.
double learning_rate_at(int64_t step, const LearningRateSettings& settings);

/// Refuses settings that make no schedule (negative rates, a warm-up longer than the run, ...), naming the number.
void check_learning_rate(const LearningRateSettings& settings);

}  // namespace paceline
