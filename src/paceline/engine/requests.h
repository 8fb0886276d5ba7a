#pragma once

// What the commands ask of the engine: plain structs, so that the command line needs no torch.

#include "paceline/config/run_settings.h"

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// `paceline train`: this process as one rank (or the only one) of a run.
struct TrainRequest {
  RunSettings settings;
  bool dry_run = false;  ///< check everything, say what would run, start nothing
  bool json = false;     ///< standard output holds one JSON document: the run's summary
};

/// `paceline eval MODEL`.
struct EvaluateRequest {
  std::string model;         ///< run folder, checkpoint folder or Hugging Face folder
  std::string data_folder;   ///< empty: the run's own
  std::string shard;         ///< empty: the held-out one
  std::int64_t sequence_length = 0;  ///< 0: the run's, else the model's longest
  std::int64_t samples = 0;  ///< 0: all
  std::int64_t micro_batch_size = 8;
  std::string precision = "fp32";
  std::vector<std::int64_t> tokens;  ///< instead of a shard: the logits and loss of this one sequence
  std::string dump;          ///< with `tokens`: a safetensors file that takes logits, loss and every gradient
  bool json = false;
};

/// `paceline generate MODEL`.
struct GenerateRequest {
  std::string model;
  std::string prompt;
  std::int64_t max_new_tokens = 100;
  double temperature = 0.8;  ///< 0: greedy
  std::int64_t top_k = 50;   ///< 0: all
  double top_p = 1.0;
  std::uint64_t seed = 1;
  bool json = false;
};

/// `paceline bench machine`.
struct BenchMachineRequest {
  std::string output;  ///< profile file; empty: the user's own
  bool json = false;
};

/// `paceline bench train`: the real training step on random tokens.
struct BenchTrainRequest {
  RunSettings settings;
  std::int64_t steps = 12;
  std::int64_t warmup_steps = 3;
  bool json = false;
};

/// `paceline convert FROM TO`.
struct ConvertRequest {
  std::string from;            ///< a run's, a checkpoint's or a Hugging Face folder
  std::string to;              ///< the folder to create
  bool to_checkpoint = false;  ///< a run folder with one checkpoint at step 0, else a Hugging Face folder
  std::string dtype;           ///< "fp32", "bf16", "fp64" or empty: as stored
  std::uint64_t max_shard_bytes = 5'000'000'000;
  bool json = false;           ///< standard output holds one JSON document
};

}  // namespace paceline
