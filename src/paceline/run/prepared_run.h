#pragma once

#include "paceline/config/learning_rate.h"
#include "paceline/config/run_settings.h"
#include "paceline/data/data_manifest.h"
#include "paceline/plan/batch.h"
#include "paceline/plan/training_step.h"

#include <filesystem>
#include <optional>

namespace paceline {

/// A run's settings with everything resolved that can be known before it starts: what the plan, the launcher and every
/// rank agree on.
struct PreparedRun {
  RunSettings settings;
  ModelConfig model;
  StepSettings step;
  LearningRateSettings learning_rate;
  DataManifest manifest;
  std::filesystem::path train_prefix;     ///< shard without its suffix
  std::filesystem::path held_out_prefix;  ///< empty: the data has none

  const Layout& layout() const { return step.parallel.layout; }
  std::int64_t tokens_per_step() const { return step.tokens(); }
};

/// Reads the data's manifest and the model's shape and holds everything against everything: layout and model, batch and
/// layout, vocabulary and tokenizer, shards and sequence length. Refuses what cannot run, in one line.
PreparedRun prepare_run(const RunSettings& settings);

/// The model's shape alone: from model.from's config.json, or [model] with the vocabulary of the data.
ModelConfig prepare_model(const RunSettings& settings, std::int64_t data_vocab_size);

LearningRateSettings resolve_learning_rate(const RunSettings& settings);

}  // namespace paceline
