#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

/// One action of one rank's step as the planner's simulation timed it.
struct PlannedPart {
  int rank = 0;
  std::uint32_t action = 0;  ///< index into the rank's schedule
  std::string kind;          ///< e.g. "forward"
  double start_s = 0;        ///< after the start of the step
  double duration_s = 0;
};

/// One operation as it runs once, inside one action of that kind.
struct PlannedOperation {
  int rank = 0;
  std::string action_kind;
  std::int32_t operation = 0;  ///< index into the rank's operations
  std::string name;            ///< e.g. "layers.0.attention"
  double duration_s = 0;
};

/// What the plan of a run predicts.
struct PlanPrediction {
  double step_time_s = 0;
  std::vector<PlannedPart> parts;
  std::vector<PlannedOperation> operations;

  const PlannedPart* find_part(int rank, std::uint32_t action) const;
  const PlannedOperation* find_operation(int rank, const std::string& action_kind, std::int32_t operation) const;

  /// Orders the entries for the lookups; called by the reader.
  void index();
};

/// Reads a run's plan.json; nothing where there is none. A file that is not a plan is one clear error.
std::optional<PlanPrediction> read_plan_prediction(const std::filesystem::path& path);

}  // namespace paceline
