#include "paceline/arch/model_config.h"

#include "paceline/base/error.h"

namespace paceline {

std::string family_name(ModelFamily family) { return family == ModelFamily::llama ? "llama" : "gpt2"; }

ModelFamily parse_family(const std::string& name) {
  if (name == "llama") return ModelFamily::llama;
  if (name == "gpt2") return ModelFamily::gpt2;
  refuse("model family '{}' is not known: llama and gpt2 are", name);
}

void validate(const ModelConfig& model) {
  const auto positive = [](const char* key, std::int64_t value) {
    if (value < 1) refuse("model.{} is {}: it must be at least 1", key, value);
    if (value > largest_model_size) refuse("model.{} is {}: it must be at most {}", key, value, largest_model_size);
  };
  positive("vocab_size", model.vocab_size);
  positive("hidden_size", model.hidden_size);
  positive("num_hidden_layers", model.num_hidden_layers);
  positive("num_attention_heads", model.num_attention_heads);
  positive("num_key_value_heads", model.num_key_value_heads);
  positive("head_dim", model.head_dim);
  positive("intermediate_size", model.intermediate_size);
  positive("max_position_embeddings", model.max_position_embeddings);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    refuse("model.num_attention_heads {} is not a multiple of model.num_key_value_heads {}: each key/value head serves "
           "the same number of query heads",
           model.num_attention_heads, model.num_key_value_heads);
  }
  if (!(model.norm_epsilon > 0)) refuse("model.norm_epsilon is {}: it must be positive", model.norm_epsilon);
  if (!(model.initializer_range >= 0)) refuse("model.initializer_range is {}: it must not be negative", model.initializer_range);
  if (model.family == ModelFamily::llama) {
    if (model.head_dim % 2 != 0) refuse("model.head_dim {} is odd: rotary embeddings turn pairs", model.head_dim);
    if (model.activation != "silu") refuse("model.activation '{}': llama is built with silu", model.activation);
    if (!(model.rope_theta > 0)) refuse("model.rope_theta is {}: it must be positive", model.rope_theta);
  } else {
    if (model.activation != "gelu_new" && model.activation != "gelu") {
      refuse("model.activation '{}': gpt2 is built with gelu_new or gelu", model.activation);
    }
    if (model.num_key_value_heads != model.num_attention_heads) {
      refuse("model.num_key_value_heads {} differs from num_attention_heads {}: gpt2 has no grouped-query attention",
             model.num_key_value_heads, model.num_attention_heads);
    }
    if (model.head_dim * model.num_attention_heads != model.hidden_size) {
      refuse("gpt2 needs hidden_size = num_attention_heads x head_dim, and {} x {} is not {}", model.num_attention_heads,
             model.head_dim, model.hidden_size);
    }
  }
}

}  // namespace paceline
