#pragma once

// What the commands ask of the engine: plain structs, so that the command line needs no torch.

#include <cstdint>
#include <string>

namespace paceline {

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
