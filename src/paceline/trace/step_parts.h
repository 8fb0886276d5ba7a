#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace paceline {

/// What a step's time is spent on, in the order of the report.
enum class StepPart {
  load,
  forward,
  backward,
  exchange,
  reduce,
  gradient_norm,
  optimizer_step,
  evaluate,
  checkpoint,
  other,
  idle,  ///< no span of any lane
};
inline constexpr std::array<std::string_view, 11> step_part_names = {
    "load",           "forward",  "backward",   "send/receive wait", "reduce",          "gradient norm",
    "optimizer step", "evaluate", "checkpoint", "other",             "idle or untraced"};

/// The part that an action of this kind belongs to, by its name: "backward_input" is backward, "wait_buckets" reduce.
StepPart step_part_of(std::string_view action_kind);

/// A span of a whole action in one step; times in seconds after the step's start.
struct TimedAction {
  double start = 0;
  double end = 0;
  std::size_t lane = 0;  ///< 0 compute, 1 communication, 2 host
  std::size_t kind = 0;
};

/// The time that each kind took of a step of `length` seconds, so that all of them and the idle time (the last element,
/// at index `kinds`) add up to the step: a moment belongs to the innermost span of the first lane that has one, so
/// communication counts only where it is not hidden behind computing.
std::vector<double> exposed_times(const std::vector<TimedAction>& actions, double length, std::size_t kinds);

}  // namespace paceline
