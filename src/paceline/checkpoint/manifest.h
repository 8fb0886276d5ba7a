#pragma once

#include "paceline/arch/model_config.h"
#include "paceline/arch/program.h"
#include "paceline/checkpoint/element_type.h"
#include "paceline/parallel/layout.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace paceline {

inline constexpr int checkpoint_schema_version = 1;
inline constexpr const char* manifest_file_name = "manifest.json";

struct SavedFile {
  std::string name;  ///< inside the checkpoint's folder
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< XXH3, 64 bits
};

/// A rectangular part of a global tensor in one file, under the key `saved_block_key`.
struct SavedBlock {
  std::string file;
  Shape begin;
  Shape extent;
  std::uint64_t checksum = 0;  ///< XXH3 of its bytes
};

/// One state ("weights", "exp_avg", ...) of one global tensor.
struct SavedState {
  ElementType type = ElementType::f32;
  std::vector<SavedBlock> blocks;
};

struct SavedTensor {
  Shape shape;
  std::map<std::string, SavedState> states;
};

/// What a checkpoint holds: written last, so that a folder with a manifest is a complete checkpoint.
struct Manifest {
  std::string program_version;
  std::string run_id;
  std::int64_t step = 0;
  ModelConfig model;
  Layout layout;  ///< that wrote it; any other reads it
  std::vector<SavedFile> files;
  std::map<std::string, SavedTensor> tensors;
  /// What the trainer continues from: optimiser steps, sample number, consumed tokens, seed, schedule, data version.
  /// Null in a checkpoint made from a foreign model.
  nlohmann::json training_state;

  bool has_state(const std::string& state) const;  ///< every tensor has it
};

/// "weights/model.norm.weight[0:64]"
std::string saved_block_key(const std::string& state, const std::string& tensor, const SavedBlock& block);

/// Text with a checksum of its own, and back. Reading refuses a broken, foreign or newer manifest and one whose blocks
/// do not tile their tensors, naming file and tensor.
std::string manifest_text(const Manifest& manifest);
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

/// Refuses unless each state's blocks cover its tensor exactly once; `where` begins the message.
void check_tiling(const Manifest& manifest, const std::string& where);

}  // namespace paceline
