#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paceline/trace/plan_prediction.h"
#include "paceline/trace/run_traces.h"
#include "paceline/trace/step_parts.h"

namespace paceline {

/// Seconds of one step, over the measured steps.
struct Timing {
  double mean = 0;
  double median = 0;
  std::optional<double> predicted;

  /// Measured mean minus prediction; 0 without one.
  double difference() const { return predicted ? mean - *predicted : 0; }
};

/// One rank's step. The means of the parts add up to the step's, and so do the predictions.
struct RankReport {
  int rank = 0;
  std::map<std::string, int> coordinate;  ///< in the layout, e.g. "pp"
  Timing step;
  std::array<Timing, step_part_names.size()> parts;
  std::map<std::string, Timing> kinds;  ///< the same by action kind, e.g. "receive_activation"
};

/// One operation inside one kind of action on one rank.
struct OperationReport {
  int rank = 0;
  std::string action_kind;
  std::int32_t operation = 0;
  std::string name;                 ///< e.g. "layers.0.attention"
  double executions = 0;            ///< per step
  double mean = 0;                  ///< seconds of one execution
  std::optional<double> predicted;  ///< seconds of one execution

  double measured_per_step() const { return mean * executions; }
  /// Seconds per step.
  double difference() const { return predicted ? (mean - *predicted) * executions : 0; }
};

/// What ran between the training steps.
struct BetweenSteps {
  std::string kind;
  double count = 0;    ///< mean over the ranks
  double total_s = 0;  ///< mean over the ranks
};

/// Measured beside planned, for one run.
struct TraceReport {
  std::string run_id;
  std::string trace_id;
  int world_size = 1;
  std::vector<std::uint32_t> steps;  ///< measured: whole on all ranks, without the skipped first ones
  std::size_t skipped = 0;
  bool planned = false;
  Timing step;                                       ///< mean over the ranks
  std::array<Timing, step_part_names.size()> parts;  ///< mean over the ranks, median of their medians
  std::vector<RankReport> ranks;
  std::vector<OperationReport> operations;           ///< by rank, action kind, operation
  std::vector<BetweenSteps> between_steps;
  std::vector<std::string> notices;
};

/// Joins the measured spans of the newest attempt with the plan by (rank, action, operation). Measures `only_step`, or
/// all steps after the first two (which warm up). Refuses a step that was not recorded whole on all ranks.
TraceReport build_trace_report(const RunTraces& traces, const std::optional<PlanPrediction>& plan,
                               std::optional<std::uint32_t> only_step = std::nullopt);

}  // namespace paceline
