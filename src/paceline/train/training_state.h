#pragma once

#include "paceline/run/prepared_run.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// Where a run stands between two steps: what a checkpoint carries beside the tensors. The random state of a run is its
/// seed and these counters, since every random number is a function of them.
struct TrainingState {
  std::int64_t step = 0;              ///< finished steps
  std::int64_t optimizer_count = 0;   ///< updates of AdamW (steps without a valid target or with a bad gradient make none)
  std::int64_t consumed_samples = 0;  ///< the next sample's number
  std::int64_t consumed_tokens = 0;
  std::int64_t skipped_steps = 0;     ///< gradient not finite
  std::int64_t empty_steps = 0;       ///< no valid target
};

nlohmann::json training_state_json(const TrainingState& state, const PreparedRun& run);

/// Reads a checkpoint's state (null: a foreign model's weights, the state of a new run). Refuses one of another seed,
/// sequence length or data, naming both values; what changed in the learning-rate schedule goes into `notices`: the rate of
/// each further step is then what the new settings say for that step.
TrainingState read_training_state(const nlohmann::json& json, const PreparedRun& run, const std::string& where,
                                  std::vector<std::string>& notices);

}  // namespace paceline
