#pragma once

#include "paceline/arch/program.h"
#include "paceline/checkpoint/manifest.h"
#include "paceline/checkpoint/run_folder.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/parallel/layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

/// One parameter of this rank with its tensors by state: "weights" always, and what the optimiser keeps ("exp_avg",
/// "exp_avg_sq", "master"). All have the parameter's local shape; each keeps its own type, bit for bit.
struct StoredParameter {
  const Parameter* parameter = nullptr;
  std::map<std::string, at::Tensor> states;
};

/// The two collective steps that saving needs, so that this folder knows no communicator.
struct SaveCollectives {
  /// Every rank's text in the order of ranks, on every rank.
  std::function<std::vector<std::string>(const std::string&)> all_gather_text;
  /// Called once every file is written and before the folder is renamed.
  std::function<void()> barrier;
};

/// Collectives of a run of one rank.
SaveCollectives single_rank_collectives();

struct SaveRequest {
  std::filesystem::path run_folder;  ///< the checkpoint becomes <run_folder>/checkpoints/step_00000120
  std::int64_t step = 0;
  std::string run_id;
  std::string program_version;
  ModelConfig model;
  Layout layout;
  int rank = 0;
  nlohmann::json training_state;  ///< rank 0's is written
  int keep_last = 0;              ///< older checkpoints removed once this one is durable; 0 keeps all
  SaveCollectives collectives;
};

/// Writes a checkpoint; every rank calls it. Each rank writes the blocks that it owns, rank 0 then the manifest, and
/// the folder appears by one rename, then `latest`. If anything fails on any rank (full disk, a weight that is not
/// finite), every rank throws the same error, naming rank, file and tensor; nothing is left behind and the previous
/// checkpoint stays the latest. Returns the new folder.
std::filesystem::path save_checkpoint(const SaveRequest& request, const std::vector<StoredParameter>& parameters);

struct LoadOptions {
  bool convert_types = false;  ///< convert values to the type of the tensor they are loaded into, instead of refusing
};

/// A complete checkpoint opened for reading, by any layout.
class Checkpoint {
 public:
  /// Opens a checkpoint's folder: reads and checks the manifest and that every file is there with its size.
  explicit Checkpoint(const std::filesystem::path& folder);
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  /// Refuses a checkpoint of another model, naming the first key that differs with both values.
  void require_model(const ModelConfig& model) const;

  /// Fills every state tensor of `parameters` (of any layout) from the blocks that overlap it; padding becomes zero.
  /// The files that it needs are verified whole before the first value is written. Tensors or states that the
  /// checkpoint lacks, other shapes and other types are errors that name the tensor.
  void load(const std::vector<StoredParameter>& parameters, LoadOptions options = {}) const;

  /// One whole global tensor, as saved.
  at::Tensor read_tensor(const std::string& tensor, const std::string& state = "weights") const;

 private:
  const SafetensorsFile& verified_file(const std::string& name) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace paceline
