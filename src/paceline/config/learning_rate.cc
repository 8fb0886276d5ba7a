#include "paceline/config/learning_rate.h"

#include <cmath>
#include <numbers>

#include "paceline/base/error.h"

namespace paceline {

double learning_rate_at(int64_t step, const LearningRateSettings& settings) {
  PACELINE_CHECK(step >= 1);
  if (step <= settings.warmup_steps)
    return settings.peak * static_cast<double>(step) / static_cast<double>(settings.warmup_steps);
  if (settings.shape == DecayShape::constant) return settings.peak;
  const int64_t decay_start =
      settings.shape == DecayShape::wsd ? settings.total_steps - settings.decay_steps : settings.warmup_steps;
  if (step <= decay_start) return settings.peak;
  if (step >= settings.total_steps) return settings.minimum;
  const double progress =
      static_cast<double>(step - decay_start) / static_cast<double>(settings.total_steps - decay_start);
  const double remaining = settings.shape == DecayShape::cosine ? (1 + std::cos(std::numbers::pi * progress)) / 2
                                                                : 1 - progress;
  return settings.minimum + (settings.peak - settings.minimum) * remaining;
}

void check_learning_rate(const LearningRateSettings& settings) {
  if (!std::isfinite(settings.peak) || settings.peak < 0)
    refuse("the peak learning rate must be a number of at least 0, not {}", settings.peak);
  if (!std::isfinite(settings.minimum) || settings.minimum < 0 || settings.minimum > settings.peak)
    refuse("the minimum learning rate must lie between 0 and the peak of {}, not be {}", settings.peak,
           settings.minimum);
  if (settings.total_steps < 1) refuse("a schedule needs at least 1 step, not {}", settings.total_steps);
  if (settings.warmup_steps < 0 || settings.warmup_steps > settings.total_steps)
    refuse("learning_rate.warmup_steps {} is more than train.steps {}: shorten the warm-up or train longer", settings.warmup_steps,
           settings.total_steps);
  if (settings.shape == DecayShape::wsd &&
      (settings.decay_steps < 0 || settings.warmup_steps + settings.decay_steps > settings.total_steps))
    refuse("learning_rate.warmup_steps {} and learning_rate.decay_steps {} together are more than train.steps {}", settings.warmup_steps,
           settings.decay_steps, settings.total_steps);
}

}  // namespace paceline
