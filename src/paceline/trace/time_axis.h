#pragma once

#include <cstdint>
#include <vector>

#include "paceline/trace/trace_file.h"

namespace paceline {

/// A jump of the wall clock against the monotonic one: a suspended machine, a clock that was set.
struct ClockStep {
  std::uint64_t ticks = 0;   ///< where it was noticed: the clock reading after it
  std::uint32_t step = 0;
  std::int64_t size_ns = 0;  ///< positive: the wall clock went ahead
};

/// One file's ticks as wall time, the axis that all ranks share. Durations are always those of the monotonic ticks; the
/// wall time of a start follows the clock readings that the recorder took at step ends, to within a millisecond, so
/// neither a drifting nor a stepping clock makes a duration negative or moves later steps away from their true time.
class TimeAxis {
 public:
  explicit TimeAxis(const TraceFile& file);

  /// Unix time in nanoseconds.
  std::int64_t wall_ns(std::uint64_t ticks) const { return wall_ns(ticks, ticks); }
  /// The same by the clock reading that holds for `start`: the end of a span that began there.
  std::int64_t wall_ns(std::uint64_t ticks, std::uint64_t start) const;
  /// A duration.
  double seconds(std::uint64_t ticks) const { return static_cast<double>(ticks) / ticks_per_second_; }
  /// Jumps of at least 50 ms.
  const std::vector<ClockStep>& clock_steps() const { return clock_steps_; }

 private:
  struct Anchor {
    std::uint64_t ticks;
    std::int64_t wall_ns;
  };

  std::int64_t nanoseconds(std::uint64_t ticks) const;

  double ticks_per_second_;
  std::vector<Anchor> anchors_;  // ascending; each holds from its ticks to the next one's
  std::vector<ClockStep> clock_steps_;
};

}  // namespace paceline
