#include "paceline/train/training_state.h"

#include "paceline/base/error.h"

#include <nlohmann/json.hpp>

namespace paceline {
namespace {

nlohmann::json schedule_json(const RunSettings& settings) {
  return {{"train.steps", settings.train.steps},
          {"optimizer.learning_rate", settings.optimizer.learning_rate},
          {"learning_rate.kind", settings.learning_rate.kind},
          {"learning_rate.warmup_steps", settings.learning_rate.warmup_steps},
          {"learning_rate.decay_steps", settings.learning_rate.decay_steps},
          {"learning_rate.minimum_ratio", settings.learning_rate.minimum_ratio}};
}

}  // namespace

nlohmann::json training_state_json(const TrainingState& state, const PreparedRun& run) {
  return {{"step", state.step},
          {"optimizer_count", state.optimizer_count},
          {"consumed_samples", state.consumed_samples},
          {"consumed_tokens", state.consumed_tokens},
          {"skipped_steps", state.skipped_steps},
          {"empty_steps", state.empty_steps},
          {"seed", run.settings.train.seed},
          {"sequence_length", run.settings.train.sequence_length},
          {"global_batch_size", run.step.batch.global},
          {"data_version", run.manifest.data_version},
          {"schedule", schedule_json(run.settings)}};
}

TrainingState read_training_state(const nlohmann::json& json, const PreparedRun& run, const std::string& where,
                                  std::vector<std::string>& notices) {
  TrainingState state;
  if (json.is_null()) return state;
  try {
    state.step = json.at("step");
    state.optimizer_count = json.at("optimizer_count");
    state.consumed_samples = json.at("consumed_samples");
    state.consumed_tokens = json.at("consumed_tokens");
    state.skipped_steps = json.at("skipped_steps");
    state.empty_steps = json.at("empty_steps");
    const auto require_equal = [&](const char* key, const auto& saved, const auto& asked) {
      if (saved != asked) {
        refuse("{} was trained with {} = {}, the settings say {}: a run keeps its value; choose another run.folder for another one",
               where, key, saved, asked);
      }
    };
    require_equal("train.seed", json.at("seed").get<std::int64_t>(), run.settings.train.seed);
    require_equal("train.sequence_length", json.at("sequence_length").get<std::int64_t>(), run.settings.train.sequence_length);
    require_equal("data version", json.at("data_version").get<std::string>(), run.manifest.data_version);
    if (json.at("global_batch_size") != run.step.batch.global) {
      notices.push_back(fmt::format("global batch changed: {} -> {} sequences; the samples go on at number {}",
                                    json.at("global_batch_size").get<std::int64_t>(), run.step.batch.global, state.consumed_samples));
    }
    const nlohmann::json asked = schedule_json(run.settings);
    for (const auto& [key, value] : json.at("schedule").items()) {
      if (asked.contains(key) && asked.at(key) != value) {
        notices.push_back(fmt::format("schedule changed: {} {} -> {}; from step {} on the rate is the new schedule's", key,
                                      value.dump(), asked.at(key).dump(), state.step + 1));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    fail("{}: training state cannot be read: {}", where, error.what());
  }
  return state;
}

}  // namespace paceline
