#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "paceline/trace/trace_file.h"

namespace paceline {

/// One whole training step of one rank.
struct RecordedStep {
  std::uint32_t step = 0;
  std::uint64_t start = 0;  ///< ticks of the span "step"
  std::uint64_t end = 0;
  std::vector<const TraceRecord*> spans;         ///< those that begin inside, without the step's own
  std::map<std::uint32_t, NameId> action_kinds;  ///< by action index: the name of the span of the whole action

  std::uint64_t duration() const { return end - start; }
};

/// The steps of a file whose end was recorded, in ascending order. Spans outside of them (evaluation, checkpoints) and
/// those of a step that was cut off are left out. The spans point into `file`.
std::vector<RecordedStep> find_steps(const TraceFile& file);

}  // namespace paceline
