#include "paceline/parallel/rank_program.h"

#include "paceline/base/error.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace paceline {
namespace {

ModelConfig llama(std::int64_t layers, std::int64_t heads = 4, std::int64_t kv_heads = 2) {
  return {.family = ModelFamily::llama, .vocab_size = 131, .hidden_size = 64, .num_hidden_layers = layers,
          .num_attention_heads = heads, .num_key_value_heads = kv_heads, .head_dim = 16, .intermediate_size = 96,
          .max_position_embeddings = 128};
}

std::string refusal(const ModelConfig& model, const ParallelOptions& options) {
  try {
    build_rank_program(model, options, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::int64_t elements(const Block& block) { return local_rows(block) * local_columns(block); }

/// Every element of every global tensor is owned exactly once over the ranks of one replica.
void expect_owned_once(const ModelConfig& model, const ParallelOptions& options) {
  std::map<std::string, std::int64_t> owned, whole;
  for (int pp = 0; pp < options.layout.pp; ++pp) {
    for (int tp = 0; tp < options.layout.tp; ++tp) {
      for (const Parameter& parameter : build_rank_program(model, options, {.tp = tp, .pp = pp}).parameters) {
        for (const Block& block : parameter.blocks) {
          if (block.replicas.front() == pp * options.layout.tp + tp) owned[block.tensor] += elements(block);
          std::int64_t size = 1;
          for (const std::int64_t extent : block.global_shape) size *= extent;
          whole[block.tensor] = size;
        }
      }
    }
  }
  EXPECT_EQ(owned, whole) << options.layout.text();
}

TEST(RankProgram, EveryElementHasOneOwner) {
  ModelConfig tied = llama(4);
  tied.tie_word_embeddings = true;
  const ModelConfig gpt2 = {.family = ModelFamily::gpt2, .vocab_size = 131, .hidden_size = 64, .num_hidden_layers = 4,
                            .num_attention_heads = 4, .num_key_value_heads = 4, .head_dim = 16, .intermediate_size = 96,
                            .max_position_embeddings = 64, .tie_word_embeddings = true, .attention_bias = true, .mlp_bias = true,
                            .activation = "gelu_new"};
  for (const ModelConfig& model : {llama(4), tied, llama(4, 8, 2), gpt2}) {
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 3, 4}) expect_owned_once(model, {.layout = {.tp = tp, .pp = pp}});
    }
  }
}

TEST(RankProgram, NormsAreWholeOnBothTensorRanks) {
  const ModelConfig llama_2_7b = {.family = ModelFamily::llama, .vocab_size = 32000, .hidden_size = 4096, .num_hidden_layers = 32,
                                  .num_attention_heads = 32, .num_key_value_heads = 32, .head_dim = 128, .intermediate_size = 11008,
                                  .max_position_embeddings = 4096};
  std::int64_t count = 0;
  for (const Parameter& parameter : build_rank_program(llama_2_7b, {.layout = {.tp = 2}}, {.tp = 1}).parameters) count += parameter.elements();
  EXPECT_EQ(count, 3369340928);
}

TEST(RankProgram, UnevenStagesHoldEachLayerOnce) {
  for (const auto& [layers, stages] : {std::pair{5, 2}, {7, 4}, {30, 4}, {10, 3}}) {
    std::multiset<int> seen;
    for (int pp = 0; pp < stages; ++pp) {
      std::set<int> here;
      for (const Operation& operation : build_rank_program(llama(layers), {.layout = {.pp = stages}}, {.pp = pp}).operations) {
        if (operation.layer >= 0) here.insert(operation.layer);
      }
      seen.insert(here.begin(), here.end());
    }
    EXPECT_EQ(static_cast<int>(seen.size()), layers);
    EXPECT_EQ(static_cast<int>(std::set<int>(seen.begin(), seen.end()).size()), layers);
  }
}

TEST(RankProgram, RefusesSplitsThatLoseLayers) {
  const std::string three_on_four = refusal(llama(3), {.layout = {.pp = 4}});
  EXPECT_NE(three_on_four.find("4"), std::string::npos);
  EXPECT_NE(three_on_four.find("3 layers"), std::string::npos);
  EXPECT_NE(refusal(llama(5), {.layout = {.pp = 2}, .layers_per_stage = {2, 2}}).find("4 layers on 2 stages"), std::string::npos);
  EXPECT_NE(refusal(llama(20), {.layout = {.pp = 1}, .layers_per_stage = {1}}).find("the model has 20"), std::string::npos);
  EXPECT_EQ(refusal(llama(5), {.layout = {.pp = 2}, .layers_per_stage = {2, 3}}), "");
}

TEST(RankProgram, RefusesHeadsThatDoNotDivide) {
  const std::string heads = refusal(llama(2, 6, 3), {.layout = {.tp = 4}});
  EXPECT_NE(heads.find("6 attention heads"), std::string::npos);
  EXPECT_NE(heads.find("1, 2, 3, 6"), std::string::npos);
  const std::string kv_heads = refusal(llama(2, 6, 3), {.layout = {.tp = 2}});
  EXPECT_NE(kv_heads.find("3 key/value heads"), std::string::npos);
  EXPECT_EQ(refusal(llama(2, 8, 2), {.layout = {.tp = 4}}), "");  // replicated key/value heads
  EXPECT_EQ(refusal(llama(2, 4, 1), {.layout = {.tp = 2}}), "");
}

TEST(RankProgram, FrozenPatternsMatchWholeNames) {
  const ParallelOptions options{.frozen = {R"(model\.layers\.0\..*)", "model.embed_tokens.weight"}};
  const Program program = build_rank_program(llama(2), options, {});
  for (const Parameter& parameter : program.parameters) {
    const bool frozen = parameter.name.starts_with("layers.0.") || parameter.name == "embedding.weight";
    EXPECT_EQ(parameter.trainable(), !frozen) << parameter.name;
  }
  EXPECT_NE(refusal(llama(2), {.frozen = {"no_such"}}).find("no_such"), std::string::npos);
  EXPECT_NE(refusal(llama(2), {.frozen = {"(["}}).find("(["), std::string::npos);
}

TEST(GradientBuckets, CoverTheBufferInTheOrderOfTheBackwardPass) {
  const Program program = build_rank_program(llama(4), {}, {});
  const GradientBuckets buckets = gradient_buckets(program, 64 << 10, 4);
  ASSERT_GT(buckets.buckets.size(), 3U);
  std::int64_t at = 0;
  int last_operation = static_cast<int>(program.operations.size());
  for (std::size_t i = 0; i < buckets.buckets.size(); ++i) {
    EXPECT_EQ(buckets.buckets[i].first, at);
    at = buckets.buckets[i].second;
    EXPECT_LE(buckets.completed_by[i], last_operation);
    last_operation = buckets.completed_by[i];
  }
  EXPECT_EQ(at, buckets.elements);
  EXPECT_EQ(buckets.order.size(), program.parameters.size());
}

TEST(GradientBuckets, PartialGradientsComeLast) {
  ModelConfig tied = llama(4);
  tied.tie_word_embeddings = true;
  const Program last_stage = build_rank_program(tied, {.layout = {.pp = 2}}, {.pp = 1});
  EXPECT_TRUE(has_partial_gradients(last_stage));
  const GradientBuckets buckets = gradient_buckets(last_stage, 1 << 30, 4);
  EXPECT_EQ(last_stage.parameters[buckets.order.back()].name, "embedding.weight");
  EXPECT_EQ(buckets.completed_by.back(), -1);
  EXPECT_FALSE(has_partial_gradients(build_rank_program(llama(4), {.layout = {.tp = 2, .pp = 2}}, {.pp = 1})));
}

}  // namespace
}  // namespace paceline
