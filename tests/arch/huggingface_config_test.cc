#include "paceline/arch/huggingface_config.h"

#include "paceline/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>

namespace paceline {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json llama() {
  return {{"model_type", "llama"},    {"vocab_size", 131},
          {"hidden_size", 64},        {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 96},  {"max_position_embeddings", 128}};
}

json gpt2() {
  return {{"model_type", "gpt2"}, {"vocab_size", 131}, {"n_embd", 32},
          {"n_layer", 2},         {"n_head", 4},       {"n_positions", 64}};
}

HuggingFaceConfig parse(const json& node) { return parse_huggingface_config(node.dump(), "m/config.json"); }

std::string refusal(const json& node) {
  try {
    parse(node);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

json with(json node, const char* key, json value) {
  node[key] = std::move(value);
  return node;
}

TEST(HuggingFaceConfig, LlamaDefaultsAreThoseOfTransformers) {
  const ModelConfig model = parse(llama()).model;
  EXPECT_EQ(model.family, ModelFamily::llama);
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.norm_epsilon, 1e-6);
  EXPECT_EQ(model.rope_theta, 10000.0);
  EXPECT_EQ(model.rope_scaling, std::nullopt);
  EXPECT_FALSE(model.tie_word_embeddings);
  EXPECT_FALSE(model.attention_bias);
  EXPECT_FALSE(model.mlp_bias);
  EXPECT_EQ(model.activation, "silu");
  json bare = llama();
  bare.erase("num_key_value_heads");
  EXPECT_EQ(parse(bare).model.num_key_value_heads, 4);
  EXPECT_EQ(parse(with(llama(), "num_key_value_heads", nullptr)).model.num_key_value_heads, 4);
}

TEST(HuggingFaceConfig, HeadDimExplicitNullAndAbsent) {
  EXPECT_EQ(parse(with(llama(), "head_dim", 32)).model.head_dim, 32);
  EXPECT_EQ(parse(with(llama(), "head_dim", nullptr)).model.head_dim, 16);
  EXPECT_THAT(refusal(with(llama(), "hidden_size", 66)),
              AllOf(HasSubstr("hidden_size 66"), HasSubstr("num_attention_heads 4")));
}

TEST(HuggingFaceConfig, NormEpsilonAndBiases) {
  for (const double epsilon : {1e-6, 1e-5, 1e-3})
    EXPECT_EQ(parse(with(llama(), "rms_norm_eps", epsilon)).model.norm_epsilon, epsilon);
  EXPECT_EQ(parse(with(gpt2(), "layer_norm_epsilon", 1e-3)).model.norm_epsilon, 1e-3);
  EXPECT_TRUE(parse(with(llama(), "attention_bias", true)).model.attention_bias);
  EXPECT_TRUE(parse(with(llama(), "mlp_bias", true)).model.mlp_bias);
  EXPECT_TRUE(parse(with(llama(), "tie_word_embeddings", true)).model.tie_word_embeddings);
}

TEST(HuggingFaceConfig, RopeOfOldAndNewTransformers) {
  const RopeScaling expected{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 8192};
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  json old = with(llama(), "rope_scaling", scaling);
  old["rope_theta"] = 500000;
  EXPECT_EQ(parse(old).model.rope_scaling, expected);
  EXPECT_EQ(parse(old).model.rope_theta, 500000.0);
  json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  EXPECT_EQ(parse(with(llama(), "rope_parameters", parameters)).model, parse(old).model);
  json by_type = scaling;
  by_type.erase("rope_type");
  by_type["type"] = "llama3";
  EXPECT_EQ(parse(with(llama(), "rope_scaling", by_type)).model.rope_scaling, expected);
  EXPECT_EQ(parse(with(llama(), "rope_scaling", nullptr)).model.rope_scaling, std::nullopt);
  EXPECT_EQ(parse(with(llama(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.5}})).model.rope_theta,
            7.5);

  for (const char* type : {"linear", "dynamic", "yarn", "longrope", "su"}) {
    EXPECT_THAT(refusal(with(llama(), "rope_scaling", {{"type", type}, {"factor", 2.0}})), HasSubstr(type));
    EXPECT_THAT(refusal(with(llama(), "rope_parameters", {{"rope_type", type}, {"factor", 2.0}})), HasSubstr(type));
  }
  json incomplete = scaling;
  incomplete.erase("low_freq_factor");
  EXPECT_THAT(refusal(with(llama(), "rope_scaling", incomplete)),
              AllOf(HasSubstr("rope_scaling"), HasSubstr("no 'low_freq_factor'")));
  for (const auto& [key, value] :
       std::map<std::string, double>{{"factor", 0.5}, {"low_freq_factor", 4.0}, {"high_freq_factor", 1.0}}) {
    json bad = scaling;
    bad[key] = value;
    EXPECT_THAT(refusal(with(llama(), "rope_scaling", bad)),
                AllOf(HasSubstr("rope_scaling"), HasSubstr("high_freq_factor")));
  }
  json contradiction = with(old, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}});
  EXPECT_THAT(refusal(contradiction), HasSubstr("contradict"));
  contradiction = with(with(llama(), "rope_theta", 10000.0), "rope_parameters", {{"rope_theta", 20000.0}});
  EXPECT_THAT(refusal(contradiction), AllOf(HasSubstr("10000"), HasSubstr("20000")));
}

TEST(HuggingFaceConfig, PartialRotaryIsIgnoredWithAWarning) {
  const HuggingFaceConfig config = parse(with(llama(), "partial_rotary_factor", 0.5));
  ASSERT_EQ(config.warnings.size(), 1U);
  EXPECT_THAT(config.warnings[0], HasSubstr("partial_rotary_factor"));
  EXPECT_EQ(config.model, parse(llama()).model);
  EXPECT_TRUE(parse(llama()).warnings.empty());
}

TEST(HuggingFaceConfig, Gpt2) {
  const ModelConfig model = parse(with(gpt2(), "n_inner", nullptr)).model;
  EXPECT_EQ(model.family, ModelFamily::gpt2);
  EXPECT_EQ(model.intermediate_size, 128);
  EXPECT_EQ(parse(gpt2()).model.intermediate_size, 128);
  EXPECT_EQ(parse(with(gpt2(), "n_inner", 96)).model.intermediate_size, 96);
  EXPECT_EQ(model.head_dim, 8);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_EQ(model.activation, "gelu_new");
  EXPECT_EQ(parse(with(gpt2(), "activation_function", "gelu")).model.activation, "gelu");
  EXPECT_EQ(parse(with(gpt2(), "activation_function", "gelu_pytorch_tanh")).model.activation, "gelu_new");
  EXPECT_THAT(refusal(with(gpt2(), "activation_function", "relu")), HasSubstr("'relu'"));
  EXPECT_THAT(refusal(with(gpt2(), "scale_attn_by_inverse_layer_idx", true)),
              HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(refusal(with(gpt2(), "scale_attn_weights", false)), HasSubstr("scale_attn_weights"));
  EXPECT_THAT(refusal(with(gpt2(), "add_cross_attention", true)), HasSubstr("add_cross_attention"));
  EXPECT_THAT(refusal(with(gpt2(), "n_head", 5)), AllOf(HasSubstr("n_embd 32"), HasSubstr("n_head 5")));
}

TEST(HuggingFaceConfig, OtherFamiliesAreNeverTakenForLlama) {
  for (const char* type : {"qwen2", "mistral", "gpt_neox", "glm", "phi", "gemma", "LLAMA"}) {
    EXPECT_THAT(refusal(with(llama(), "model_type", type)), AllOf(HasSubstr("m/config.json"), HasSubstr(type))) << type;
  }
  json none = llama();
  none.erase("model_type");
  EXPECT_THAT(refusal(none), HasSubstr("model_type"));
}

TEST(HuggingFaceConfig, HostileValuesNameTheKey) {
  const std::vector<std::pair<json, std::string>> cases = {
      {with(llama(), "hidden_size", "64"), "'hidden_size' is \"64\""},
      {with(llama(), "hidden_size", 64.5), "'hidden_size' is 64.5"},
      {with(llama(), "hidden_size", -64), "hidden_size"},
      {with(llama(), "vocab_size", 0), "vocab_size"},
      {with(llama(), "vocab_size", std::uint64_t{1} << 63), "'vocab_size'"},
      {with(llama(), "num_hidden_layers", 1'000'000'000), "layers"},
      {with(llama(), "num_attention_heads", 0), "num_attention_heads 0"},
      {with(llama(), "num_key_value_heads", 3), "num_key_value_heads 3"},
      {with(llama(), "head_dim", 15), "head_dim 15"},
      {with(llama(), "rms_norm_eps", "small"), "'rms_norm_eps'"},
      {with(llama(), "rms_norm_eps", 0.0), "norm_epsilon"},
      {with(llama(), "attention_bias", 1), "'attention_bias'"},
      {with(llama(), "hidden_act", "gelu"), "'gelu'"},
      {with(llama(), "rope_scaling", "llama3"), "'rope_scaling'"},
      {with(llama(), "quantization_config", {{"bits", 4}}), "quantization_config"},
      {with(llama(), "eos_token_id", json::array({1, "x"})), "'eos_token_id'"},
  };
  for (const auto& [node, message] : cases)
    EXPECT_THAT(refusal(node), AllOf(HasSubstr("m/config.json"), HasSubstr(message)));
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}) {
    json missing = llama();
    missing.erase(key);
    EXPECT_THAT(refusal(missing), HasSubstr(fmt::format("no '{}'", key)));
  }
  EXPECT_THROW(parse_huggingface_config("{", "c"), Error);
  EXPECT_THROW(parse_huggingface_config("[1]", "c"), Error);
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THROW(parse_huggingface_config(R"({"model_type": "llama", "vocab_size": )" + nested + "}", "c"), Error);
  EXPECT_EQ(refusal(with(llama(), "stray_key", {{"any", "thing"}})), "");
}

TEST(HuggingFaceConfig, WritesWhatItReads) {
  std::vector<json> nodes = {llama(), gpt2(), with(gpt2(), "tie_word_embeddings", false), with(gpt2(), "n_inner", 96)};
  json full = with(with(with(llama(), "head_dim", 32), "attention_bias", true), "tie_word_embeddings", true);
  full["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 32.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 64}};
  full["rms_norm_eps"] = 1.2345678901234567e-5;
  full["bos_token_id"] = 1;
  full["eos_token_id"] = json::array({2, 3});
  full["dtype"] = "bfloat16";
  nodes.push_back(full);
  for (const json& node : nodes) {
    const HuggingFaceConfig config = parse(node);
    const HuggingFaceConfig again = parse_huggingface_config(huggingface_config_text(config), "c");
    EXPECT_EQ(again.model, config.model) << node;
    EXPECT_EQ(again.bos_token_id, config.bos_token_id);
    EXPECT_EQ(again.eos_token_ids, config.eos_token_ids);
    EXPECT_EQ(again.dtype, config.dtype);
    EXPECT_EQ(first_difference(again.model, config.model), std::nullopt);
  }
  const json written = json::parse(huggingface_config_text(parse(full)));
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_EQ(written["dtype"], "bfloat16");
  EXPECT_EQ(written["head_dim"], 32);
  EXPECT_EQ(written["architectures"], json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(written["rope_scaling"]["factor"], 32.0);
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], 10000.0);
}

TEST(HuggingFaceConfig, FirstDifference) {
  const ModelConfig a = parse(llama()).model;
  ModelConfig b = a;
  b.initializer_range = 1.0;
  EXPECT_EQ(first_difference(a, b), std::nullopt);
  b.rope_theta = 20000.0;
  ASSERT_TRUE(first_difference(a, b).has_value());
  EXPECT_EQ(first_difference(a, b)->key, "rope_theta");
  EXPECT_EQ(first_difference(a, b)->first, "10000.0");
  EXPECT_EQ(first_difference(a, b)->second, "20000.0");
  EXPECT_EQ(first_difference(a, parse(gpt2()).model)->key, "model_type");
}

}  // namespace
}  // namespace paceline
