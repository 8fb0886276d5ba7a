#include "paceline/arch/operation_cost.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

/// Width 8, 2 heads of 4, 1 key/value head, feed-forward 12, vocabulary 10, one layer.
ModelConfig tiny(ModelFamily family) {
  ModelConfig model{.family = family, .vocab_size = 10, .hidden_size = 8, .num_hidden_layers = 1,
                    .num_attention_heads = 2, .num_key_value_heads = family == ModelFamily::llama ? 1 : 2,
                    .head_dim = 4, .intermediate_size = 12, .max_position_embeddings = 16};
  model.tie_word_embeddings = family == ModelFamily::gpt2;
  model.activation = family == ModelFamily::llama ? "silu" : "gelu_new";
  return model;
}

constexpr MicroBatch micro_batch{.sequences = 2, .sequence_length = 3, .element_bytes = 4};  // 6 tokens

const Operation& named(const Program& program, const std::string& name) {
  for (const Operation& operation : program.operations) {
    if (operation.name == name) return operation;
  }
  throw std::runtime_error("no operation " + name);
}

std::vector<std::string> saved_names(const Program& program, const OperationCost& cost) {
  std::vector<std::string> names;
  for (const int value : cost.saved_values) names.push_back(program.values[static_cast<std::size_t>(value)].name);
  return names;
}

TEST(OperationCost, Linear) {
  const Program program = build_program(tiny(ModelFamily::llama));
  const OperationCost cost = operation_cost(program, named(program, "layers.0.attention.qkv"), micro_batch);
  EXPECT_EQ(cost.parameters, 8 * 16);
  EXPECT_EQ(cost.forward_flops, 2 * 6 * 8 * 16);
  EXPECT_EQ(cost.backward_input_flops, 2 * 6 * 8 * 16);
  EXPECT_EQ(cost.backward_weight_flops, 2 * 6 * 8 * 16);
  EXPECT_EQ(cost.forward_bytes, 4 * (6 * 8 + 6 * 16 + 8 * 16));
  EXPECT_EQ(cost.backward_weight_bytes, 4 * (6 * 8 + 6 * 16 + 2 * 8 * 16));
  EXPECT_EQ(saved_names(program, cost), std::vector<std::string>{"layers.0.attention_norm"});
  EXPECT_EQ(cost.saved_extra_bytes, 0);
}

TEST(OperationCost, AFrozenWeightNeedsNeitherItsInputNorAWeightGradient) {
  Program program = build_program(tiny(ModelFamily::llama));
  const Operation& qkv = named(program, "layers.0.attention.qkv");
  for (Block& block : program.parameters[static_cast<std::size_t>(qkv.parameters[0])].blocks) block.trainable = false;
  const OperationCost cost = operation_cost(program, qkv, micro_batch);
  EXPECT_EQ(cost.forward_flops, 2 * 6 * 8 * 16);
  EXPECT_EQ(cost.backward_input_flops, 2 * 6 * 8 * 16);
  EXPECT_EQ(cost.backward_weight_flops, 0);
  EXPECT_TRUE(cost.saved_values.empty());
}

TEST(OperationCost, NormsKeepTheirInputAndStatistics) {
  const Program llama = build_program(tiny(ModelFamily::llama));
  const OperationCost rms = operation_cost(llama, named(llama, "layers.0.attention_norm"), micro_batch);
  EXPECT_EQ(saved_names(llama, rms), std::vector<std::string>{"embedding"});
  EXPECT_EQ(rms.saved_extra_bytes, 6 * 4);
  EXPECT_EQ(rms.forward_flops, 0);
  EXPECT_EQ(rms.parameters, 8);
  const Program gpt2 = build_program(tiny(ModelFamily::gpt2));
  const OperationCost layer = operation_cost(gpt2, named(gpt2, "layers.0.attention_norm"), micro_batch);
  EXPECT_EQ(layer.saved_extra_bytes, 2 * 6 * 4);
  EXPECT_EQ(layer.parameters, 16);
}

TEST(OperationCost, AttentionKeepsQkvOutputAndLogSumExp) {
  const Program program = build_program(tiny(ModelFamily::llama));
  const OperationCost cost = operation_cost(program, named(program, "layers.0.attention"), micro_batch);
  EXPECT_EQ(cost.forward_flops, 2 * 2 * 3 * 3 * 8);  // sequences 2, 4 T^2 heads head_dim / 2
  EXPECT_EQ(cost.backward_input_flops, 2 * cost.forward_flops);
  EXPECT_EQ(saved_names(program, cost), (std::vector<std::string>{"layers.0.attention.rope", "layers.0.attention"}));
  EXPECT_EQ(cost.saved_extra_bytes, 2 * 6 * 4);
}

TEST(OperationCost, AttentionCountsQueryHeadsOnly) {  // T09: 134,217,728 FLOP with a full mask, half of it causal
  ModelConfig model = tiny(ModelFamily::llama);
  model.num_attention_heads = 8;
  model.head_dim = 64;
  for (const std::int64_t kv_heads : {1, 2, 8}) {
    model.num_key_value_heads = kv_heads;
    const Program program = build_program(model);
    const OperationCost cost = operation_cost(program, named(program, "layers.0.attention"),
                                              {.sequences = 1, .sequence_length = 256, .element_bytes = 4});
    EXPECT_EQ(cost.forward_flops, 134217728.0 / 2);
  }
}

TEST(OperationCost, WhatElementWiseOperationsKeep) {
  const Program llama = build_program(tiny(ModelFamily::llama));
  const Program gpt2 = build_program(tiny(ModelFamily::gpt2));
  const auto saved = [&](const Program& program, const std::string& name) {
    return saved_names(program, operation_cost(program, named(program, name), micro_batch));
  };
  EXPECT_EQ(saved(llama, "layers.0.mlp.swiglu"), std::vector<std::string>{"layers.0.mlp.gate_up"});
  EXPECT_EQ(saved(gpt2, "layers.0.mlp.gelu"), std::vector<std::string>{"layers.0.mlp.up"});
  EXPECT_EQ(saved(llama, "embedding"), std::vector<std::string>{"tokens"});
  EXPECT_EQ(saved(llama, "cross_entropy"), std::vector<std::string>{"logits"});
  for (const char* name : {"layers.0.attention.rope", "layers.0.attention.residual"}) {
    EXPECT_TRUE(saved(llama, name).empty()) << name;
  }
  EXPECT_TRUE(saved(gpt2, "position_embedding").empty());
}

TEST(OperationCost, CrossEntropyTalksOnlyWhereTheVocabularyIsSplit) {
  Program program = build_program(tiny(ModelFamily::llama));
  const Operation loss = named(program, "cross_entropy");
  EXPECT_EQ(operation_cost(program, loss, micro_batch).forward_messages, 0);
  program.values[static_cast<std::size_t>(program.logits)].width = 5;
  const OperationCost split = operation_cost(program, loss, micro_batch);
  EXPECT_EQ(split.forward_messages, 2);
  EXPECT_EQ(split.forward_message_bytes, 3 * 6 * 4);
}

TEST(OperationCost, CommunicationSendsItsValueOnOneWay) {
  Program program = build_program(tiny(ModelFamily::llama));
  program.values.push_back({"copy", ValueKind::activation, 8});
  const int copy = static_cast<int>(program.values.size()) - 1;
  const Operation forward{.kind = OperationKind::all_reduce, .inputs = {program.operations[0].outputs[0]},
                          .outputs = {copy}, .in_place = true};
  Operation backward = forward;
  backward.kind = OperationKind::tensor_parallel_copy;
  EXPECT_EQ(operation_cost(program, forward, micro_batch).forward_message_bytes, 6 * 8 * 4);
  EXPECT_EQ(operation_cost(program, forward, micro_batch).backward_message_bytes, 0);
  EXPECT_EQ(operation_cost(program, backward, micro_batch).forward_message_bytes, 0);
  EXPECT_EQ(operation_cost(program, backward, micro_batch).backward_message_bytes, 6 * 8 * 4);
}

TEST(SavedBytes, CountsEachStorageOnce) {
  // Widths of what a token keeps in the LLaMA layer: embedding (norm), norm (qkv), qkv (attention; rope is in place),
  // attention (its own and the output product's), residual (norm), norm (gate-up), gate-up (swiglu), swiglu (down);
  // then the last residual, the final norm, the logits. Statistics: 3 norms and 2 heads.
  const double widths = 8 + 8 + 16 + 8 + 8 + 8 + 24 + 12 + 8 + 8 + 10 + 3 + 2;
  EXPECT_EQ(saved_bytes(build_program(tiny(ModelFamily::llama)), micro_batch), 6 * (widths * 4 + 8));
  // GPT-2: the position embedding writes into the embedding's storage; layer norms keep two statistics.
  const double gpt2 = 8 + 8 + 24 + 8 + 8 + 8 + 12 + 12 + 8 + 8 + 10 + 3 * 2 + 2;
  EXPECT_EQ(saved_bytes(build_program(tiny(ModelFamily::gpt2)), micro_batch), 6 * (gpt2 * 4 + 8));
}

TEST(ValueStorage, FollowsChainsOfInPlaceOperations) {
  const Program program = build_program(tiny(ModelFamily::gpt2));
  const std::vector<int> storage = value_storage(program);
  const int embedded = named(program, "embedding").outputs[0];
  EXPECT_EQ(storage[static_cast<std::size_t>(named(program, "position_embedding").outputs[0])], embedded);
  EXPECT_EQ(storage[static_cast<std::size_t>(embedded)], embedded);
}

TEST(ValueBytes, Logits) {  // T07
  Program program = build_program(tiny(ModelFamily::llama));
  const auto logits = [&](std::int64_t width, std::int64_t tokens, std::int64_t element_bytes) {
    program.values[static_cast<std::size_t>(program.logits)].width = width;
    return value_bytes(program, program.logits,
                       {.sequences = 1, .sequence_length = tokens, .element_bytes = element_bytes}) / (1 << 30);
  };
  EXPECT_NEAR(logits(248320 / 2, 9216, 2), 2.131, 5e-4);
  EXPECT_NEAR(logits(151936, 8192, 4), 4.637, 5e-4);
  EXPECT_NEAR(logits(151936, 1024, 4), 0.580, 5e-4);
  EXPECT_NEAR(logits(76032, 205280, 4), 58.14, 5e-3);
}

ModelConfig llama_3_2_1b(bool tied) {
  return {.family = ModelFamily::llama, .vocab_size = 128256, .hidden_size = 2048, .num_hidden_layers = 16,
          .num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 64, .intermediate_size = 8192,
          .max_position_embeddings = 131072, .tie_word_embeddings = tied};
}

TEST(ModelFlops, ATiedHeadIsOneParameterAndOneProduct) {  // T01
  EXPECT_EQ(parameter_count(build_program(llama_3_2_1b(true))), 1235814400);
  EXPECT_EQ(parameter_count(build_program(llama_3_2_1b(false))), 1498482688);
  for (const bool tied : {true, false}) {
    EXPECT_EQ(model_flops_per_token(llama_3_2_1b(tied), 0), 7414480896.0);
  }
}

TEST(ModelFlops, Llama3_8B) {  // T09
  const ModelConfig model{.family = ModelFamily::llama, .vocab_size = 128256, .hidden_size = 4096,
                          .num_hidden_layers = 32, .num_attention_heads = 32, .num_key_value_heads = 8,
                          .head_dim = 128, .intermediate_size = 14336, .max_position_embeddings = 8192};
  EXPECT_EQ(parameter_count(build_program(model)), 8030261248);
  EXPECT_NEAR(model_flops_per_token(model, 0) / 1e9, 45.03, 5e-3);
  EXPECT_NEAR((model_flops_per_token(model, 8192) - model_flops_per_token(model, 0)) / 1e9, 6.44, 5e-3);
}

TEST(ModelFlops, EqualTheSumOfTheOperations) {
  for (const ModelFamily family : {ModelFamily::llama, ModelFamily::gpt2}) {
    const ModelConfig model = tiny(family);
    const Program program = build_program(model);
    double flops = 0;
    for (const Operation& operation : program.operations) {
      const OperationCost cost = operation_cost(program, operation, micro_batch);
      flops += cost.forward_flops + cost.backward_input_flops + cost.backward_weight_flops;
    }
    EXPECT_DOUBLE_EQ(flops, 6 * model_flops_per_token(model, 3));
  }
}

}  // namespace
}  // namespace paceline
