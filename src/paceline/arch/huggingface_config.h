#pragma once

#include "paceline/arch/model_config.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

/// A Hugging Face `config.json`, as far as LLaMA and GPT-2 go.
struct HuggingFaceConfig {
  ModelConfig model;
  std::string dtype;  ///< "float32", "bfloat16", ...: the tensors' type; empty when the file does not say
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;
  std::optional<std::int64_t> pad_token_id;
  std::vector<std::string> warnings;  ///< keys that were read past knowingly, one line each
};

/// Reads the text of a config.json; `path` is for messages. Defaults are those of transformers for each model type.
/// Refuses other model types, quantised weights, rotary scalings other than LLaMA 3's and whatever else would change
/// the model's function without being computed here, naming the key.
HuggingFaceConfig parse_huggingface_config(const std::string& text, const std::filesystem::path& path);

/// The text of a config.json that transformers 4 and 5 load.
std::string huggingface_config_text(const HuggingFaceConfig& config);

/// "hidden_size is 64 in one and 128 in the other"-like difference, as key and both values; none when two models
/// compute the same function of the same tensors (initial values do not count).
struct ModelDifference {
  std::string key;
  std::string first;
  std::string second;
};
std::optional<ModelDifference> first_difference(const ModelConfig& first, const ModelConfig& second);

}  // namespace paceline
