#include "paceline/supervision/activity.h"

#include <fmt/format.h>

namespace paceline {

std::string Activity::text() const {
  const char* const what = what_.load(std::memory_order_relaxed);
  const std::int64_t step = step_.load(std::memory_order_relaxed);
  const std::int64_t item = item_.load(std::memory_order_relaxed);
  std::string text = step >= 0 ? fmt::format("step {}, {}", step, what) : what;
  if (item >= 0) text += fmt::format(" {}", item);
  return text;
}

}  // namespace paceline
