#pragma once

#include "paceline/arch/huggingface_config.h"
#include "paceline/arch/program.h"
#include "paceline/checkpoint/safetensors.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace paceline {

/// The distinct global tensors of a model's parameters, by Hugging Face name, in the order of their first block.
struct GlobalTensor {
  std::string name;
  Shape shape;
};
std::vector<GlobalTensor> global_tensors(const std::vector<Parameter>& parameters);

/// A model in Hugging Face's layout: config.json with model.safetensors or a sharded model.safetensors.index.json.
class HuggingFaceModel {
 public:
  explicit HuggingFaceModel(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const HuggingFaceConfig& config() const { return config_; }

  /// Holds the files against the tensors that the model takes: a missing or unexpected tensor, or one of another shape
  /// or an unreadable type, is an error with its name (and file). GPT-2's mask buffers, LLaMA's inverse frequencies and
  /// a tied head's copy are skipped knowingly: see `skipped`.
  void match(const std::vector<GlobalTensor>& expected);
  const std::vector<std::string>& skipped() const { return skipped_; }

  /// After `match`: a tensor's values as the file has them.
  at::Tensor read_tensor(const std::string& name) const;
  /// The one floating type of all tensors, or f32 when they differ.
  ElementType common_type() const;

 private:
  struct Place {
    std::size_t file;
    std::string name;
  };

  void check_tied_head(const Place& head, const std::string& table);

  std::filesystem::path folder_;
  HuggingFaceConfig config_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> found_;    ///< every tensor of the files, by the name in the file
  std::map<std::string, Place> matched_;  ///< by the model's name
  std::vector<std::string> skipped_;
};

struct HuggingFaceExport {
  HuggingFaceConfig config;
  std::vector<GlobalTensor> tensors;
  std::function<at::Tensor(const std::string&)> read;
  ElementType type = ElementType::f32;  ///< of every floating tensor in the files
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::filesystem::path tokenizer_folder;  ///< holds tokenizer.json, or empty
};

/// Writes config.json, generation_config.json, model.safetensors (or shards and their index) and the tokenizer's files.
void write_huggingface_model(const std::filesystem::path& folder, const HuggingFaceExport& model);

}  // namespace paceline
