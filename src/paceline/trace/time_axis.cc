#include "paceline/trace/time_axis.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace paceline {
namespace {

constexpr std::int64_t tolerance_ns = 1'000'000;
constexpr std::int64_t smallest_step_ns = 50'000'000;
constexpr std::int64_t shortest_baseline_ns = 20'000'000;
constexpr double largest_refinement = 1e-3;  // the two-millisecond measurement at the start is better than that

std::int64_t monotonic_of(const TraceRecord& clock) {
  const std::uint64_t high = static_cast<std::uint32_t>(clock.operation);
  return static_cast<std::int64_t>(clock.action | high << 32);
}

/// The tick rate over the whole file, where its clock readings are plausible.
double refined_rate(const TraceFile& file) {
  const double first_guess = file.header.ticks_per_second;
  if (!file.header.time_stamp_counter || file.clocks.empty()) return first_guess;
  const TraceRecord& last = file.clocks.back();
  const std::int64_t elapsed_ns = monotonic_of(last) - file.header.start_monotonic_ns;
  if (elapsed_ns < shortest_baseline_ns || last.start <= file.header.start_ticks) return first_guess;
  const double rate = static_cast<double>(last.start - file.header.start_ticks) * 1e9 / static_cast<double>(elapsed_ns);
  return std::abs(rate / first_guess - 1) < largest_refinement ? rate : first_guess;
}

}  // namespace

TimeAxis::TimeAxis(const TraceFile& file)
    : ticks_per_second_(refined_rate(file)), anchors_{{file.header.start_ticks, file.header.start_wall_ns}} {
  for (const TraceRecord& clock : file.clocks) {
    const auto read_wall_ns = static_cast<std::int64_t>(clock.duration);
    const std::int64_t error_ns = read_wall_ns - wall_ns(clock.start);
    if (std::abs(error_ns) < tolerance_ns || clock.start <= anchors_.back().ticks) continue;
    anchors_.push_back({clock.start, read_wall_ns});
    if (std::abs(error_ns) >= smallest_step_ns) clock_steps_.push_back({clock.start, clock.step, error_ns});
  }
}

std::int64_t TimeAxis::nanoseconds(std::uint64_t ticks) const {
  constexpr double longest = 2e18;  // 63 years: whatever a file claims, sums with a wall time do not overflow
  return std::llround(std::min(static_cast<double>(ticks) * (1e9 / ticks_per_second_), longest));
}

std::int64_t TimeAxis::wall_ns(std::uint64_t ticks, std::uint64_t start) const {
  auto anchor = std::upper_bound(anchors_.begin(), anchors_.end(), start,
                                 [](std::uint64_t value, const Anchor& a) { return value < a.ticks; });
  if (anchor != anchors_.begin()) --anchor;
  return ticks >= anchor->ticks ? anchor->wall_ns + nanoseconds(ticks - anchor->ticks)
                                : anchor->wall_ns - nanoseconds(anchor->ticks - ticks);
}

}  // namespace paceline
