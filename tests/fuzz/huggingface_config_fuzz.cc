#include "fuzz_target.h"

#include "paceline/arch/huggingface_config.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  const HuggingFaceConfig config = parse_huggingface_config(std::string(bytes), "config.json");
  const HuggingFaceConfig again = parse_huggingface_config(huggingface_config_text(config), "written again");
  require(!first_difference(config.model, again.model), "written and read back, it is another model");
}

std::vector<std::string> seeds() {
  const ModelConfig llama = {.vocab_size = 32, .hidden_size = 8, .num_hidden_layers = 2, .num_attention_heads = 2,
                             .num_key_value_heads = 1, .head_dim = 4, .intermediate_size = 16,
                             .max_position_embeddings = 16, .rope_scaling = RopeScaling{}};
  ModelConfig gpt2 = {.family = ModelFamily::gpt2, .vocab_size = 32, .hidden_size = 8, .num_hidden_layers = 2,
                      .num_attention_heads = 2, .num_key_value_heads = 2, .head_dim = 4, .intermediate_size = 32,
                      .max_position_embeddings = 16, .activation = "gelu_new"};
  gpt2.tie_word_embeddings = true;
  std::vector<std::string> all = {
      huggingface_config_text({.model = llama, .dtype = "bfloat16", .bos_token_id = 1, .eos_token_ids = {2, 3}}),
      huggingface_config_text({.model = gpt2}),
      R"({"model_type":"gpt2","vocab_size":8,"n_embd":9223372036854775807,"n_layer":1,"n_head":1,"n_positions":4})",
      R"({"model_type":"gpt2","vocab_size":8,"n_embd":-9223372036854775808,"n_layer":1,"n_head":-1,"n_positions":4})",
      R"({"model_type":"llama","vocab_size":1e400})",
  };
  for (const char* key : {"model_type", "vocab_size", "rope_scaling"}) {
    const std::string before = std::string(R"({"model_type":"llama",")") + key + "\":";
    for (std::string& nested : deeply_nested_json(before, "}")) all.push_back(std::move(nested));
  }
  return all;
}

}  // namespace paceline
