#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace paceline {

enum class ModelFamily { llama, gpt2 };

/// LLaMA 3.1's frequency scaling of rotary embeddings (Hugging Face's `rope_scaling` with rope_type "llama3").
struct RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
  bool operator==(const RopeScaling&) const = default;
};

/// The shape of a model, by Hugging Face's names.
struct ModelConfig {
  ModelFamily family = ModelFamily::llama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_position_embeddings = 0;
  double norm_epsilon = 1e-5;  ///< `rms_norm_eps` or `layer_norm_epsilon`
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         ///< biases on q, k, v and o (LLaMA); GPT-2 always has them
  bool mlp_bias = false;               ///< biases on gate, up and down (LLaMA); GPT-2 always has them
  std::string activation = "silu";     ///< `hidden_act` / `activation_function`: silu, gelu_new or gelu
  double initializer_range = 0.02;     ///< standard deviation of the initial weights
  bool operator==(const ModelConfig&) const = default;
};

/// Of each number of a shape: products of two of them fit 64 bits.
inline constexpr std::int64_t largest_model_size = std::int64_t{1} << 31;

/// Refuses a shape that no model can have, naming the numbers (heads that do not divide, zero sizes, ...).
void validate(const ModelConfig& model);

std::string family_name(ModelFamily family);
ModelFamily parse_family(const std::string& name);

}  // namespace paceline
