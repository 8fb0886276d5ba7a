#include "paceline/arch/program.h"

#include "paceline/base/error.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace paceline {
namespace {

ModelConfig llama_3_2_1b(bool tied) {
  return {.family = ModelFamily::llama, .vocab_size = 128256, .hidden_size = 2048, .num_hidden_layers = 16, .num_attention_heads = 32,
          .num_key_value_heads = 8, .head_dim = 64, .intermediate_size = 8192, .max_position_embeddings = 131072,
          .tie_word_embeddings = tied};
}

TEST(Program, CountsATiedTableOnce) {
  EXPECT_EQ(parameter_count(build_program(llama_3_2_1b(true))), 1235814400);
  EXPECT_EQ(parameter_count(build_program(llama_3_2_1b(false))), 1498482688);
}

TEST(Program, CountsTwoNormsALayer) {
  const ModelConfig llama_2_7b = {.family = ModelFamily::llama, .vocab_size = 32000, .hidden_size = 4096, .num_hidden_layers = 32,
                                  .num_attention_heads = 32, .num_key_value_heads = 32, .head_dim = 128, .intermediate_size = 11008,
                                  .max_position_embeddings = 4096};
  EXPECT_EQ(parameter_count(build_program(llama_2_7b)), 6738415616);
}

TEST(Program, Gpt2HasItsPublishedSize) {
  const ModelConfig gpt2 = {.family = ModelFamily::gpt2, .vocab_size = 50257, .hidden_size = 768, .num_hidden_layers = 12,
                            .num_attention_heads = 12, .num_key_value_heads = 12, .head_dim = 64, .intermediate_size = 3072,
                            .max_position_embeddings = 1024, .tie_word_embeddings = true, .attention_bias = true, .mlp_bias = true,
                            .activation = "gelu_new"};
  EXPECT_EQ(parameter_count(build_program(gpt2)), 124439808);
}

TEST(Program, NormsAndBiasesDoNotDecay) {
  ModelConfig model = llama_3_2_1b(false);
  model.attention_bias = model.mlp_bias = true;
  for (const Parameter& parameter : build_program(model).parameters) {
    const bool is_vector = parameter.shape.size() == 1;
    EXPECT_EQ(parameter.decays, !is_vector) << parameter.name;
  }
}

TEST(Program, HasHuggingFaceNames) {
  const Program program = build_program(llama_3_2_1b(false));
  std::vector<std::string> names;
  for (const Parameter& parameter : program.parameters) {
    for (const Block& block : parameter.blocks) names.push_back(block.tensor);
  }
  for (const char* name : {"model.embed_tokens.weight", "model.layers.15.self_attn.k_proj.weight", "model.layers.3.mlp.up_proj.weight",
                           "model.norm.weight", "lm_head.weight"}) {
    EXPECT_TRUE(std::find(names.begin(), names.end(), name) != names.end()) << name;
  }
}

TEST(Program, VerifyFindsBrokenLists) {
  const Program whole = build_program(llama_3_2_1b(false));
  Program broken = whole;
  std::swap(broken.operations[1], broken.operations[2]);  // reads a value before it is written
  EXPECT_THROW(verify(broken), std::logic_error);
  broken = whole;
  broken.parameters[0].blocks[0].extent[0] += 1;
  EXPECT_THROW(verify(broken), std::logic_error);
  broken = whole;
  broken.operations[2].outputs = broken.operations[1].outputs;  // writes a value twice
  EXPECT_THROW(verify(broken), std::logic_error);
}

TEST(ModelConfig, RefusesImpossibleShapes) {
  const auto refused = [](auto change) {
    ModelConfig model = llama_3_2_1b(false);
    change(model);
    try {
      validate(model);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused([](ModelConfig& m) { m.num_key_value_heads = 5; }).find("32"), std::string::npos);
  EXPECT_NE(refused([](ModelConfig& m) { m.head_dim = 63; }).find("63"), std::string::npos);
  EXPECT_NE(refused([](ModelConfig& m) { m.vocab_size = 0; }).find("vocab_size"), std::string::npos);
  EXPECT_NE(refused([](ModelConfig& m) { m.hidden_size = -1; }).find("hidden_size"), std::string::npos);
  EXPECT_EQ(refused([](ModelConfig&) {}), "");
}

}  // namespace
}  // namespace paceline
