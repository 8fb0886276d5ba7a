#include "paceline/plan/memory_model.h"

#include "planned_models.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

constexpr double token = 6 * 4;            // bytes of a value of width 1
constexpr double samples = 6 * 17;         // id, target and mask of a micro-batch

TEST(StageMemory, OneLayerByHand) {
  const TrainingStep step = build_training_step(tiny_step({}, 1, 1));
  const StageMemory memory = stage_memory(step, 0);
  // Kept to the end of the forward: embedding, norm, qkv, attention, residual, norm, gate-up, swiglu, residual, norm,
  // logits, and the statistics of three norms and two heads. The head's backward adds its input's gradient.
  const double kept = 8 + 8 + 16 + 8 + 8 + 8 + 24 + 12 + 8 + 8 + 10 + 3 + 2;
  EXPECT_EQ(memory.activations, (kept + 8) * token + samples);
  EXPECT_EQ(memory.peak_operation, "head");
  EXPECT_EQ(action_label(step.schedule.ranks[0][static_cast<std::size_t>(memory.peak_action)]), "backward m0");
  EXPECT_EQ(memory.peak_in_flight, 1);
  EXPECT_EQ(memory.logits, 10 * token);
  const double elements = 80 + 8 + 128 + 64 + 8 + 192 + 96 + 8 + 80;  // each aligned to 16
  EXPECT_EQ(memory.gradients, (elements + 3 * 8) * 4);
  EXPECT_EQ(memory.parameters, memory.gradients);
  EXPECT_EQ(memory.optimizer, 2 * memory.gradients);
  EXPECT_EQ(memory.workspace, 3 * 4 * (4 + 8));
  EXPECT_EQ(memory.total(), memory.activations + 4 * memory.gradients + memory.workspace);
}

TEST(StageMemory, AccumulationKeepsOneMicroBatchAndItsSamples) {
  const double one = stage_memory(build_training_step(tiny_step({}, 1, 1)), 0).activations;
  EXPECT_EQ(stage_memory(build_training_step(tiny_step({}, 1, 5)), 0).activations, one + 4 * samples);
}

TEST(StageMemory, GpipeHoldsAllMicroBatchesAnd1F1BOnlyItsStagesShare) {
  const auto activations = [](PipelineSchedule kind, int stage, int micro_batches) {
    StepSettings settings = tiny_step({.pp = 2}, 2, micro_batches);
    settings.schedule = kind;
    const StageMemory memory = stage_memory(build_training_step(settings), stage);
    return std::pair{memory.activations - micro_batches * samples, memory.peak_in_flight};
  };
  const auto gpipe = activations(PipelineSchedule::gpipe, 0, 6);
  const auto interleaved = activations(PipelineSchedule::one_forward_one_backward, 0, 6);
  EXPECT_EQ(gpipe.second, 6);
  EXPECT_EQ(interleaved.second, 2);
  EXPECT_EQ(activations(PipelineSchedule::one_forward_one_backward, 1, 6).second, 1);
  // A micro-batch in flight on stage 0 keeps embedding to swiglu and its statistics.
  const double kept = 8 + 8 + 16 + 8 + 8 + 8 + 24 + 12 + 2 + 2;
  EXPECT_NEAR(gpipe.first - interleaved.first, 4 * kept * token, 2 * 8 * token * 6);
}

TEST(StageMemory, FrozenParametersHaveNoGradientAndNoMoments) {
  StepSettings settings = tiny_step({}, 1, 1);
  const StageMemory all = stage_memory(build_training_step(settings), 0);
  settings.parallel.frozen = {"model\\.embed_tokens\\.weight", ".*mlp.*"};
  const StageMemory some = stage_memory(build_training_step(settings), 0);
  EXPECT_EQ(all.gradients - some.gradients, (80 + 192 + 96) * 4);
  EXPECT_EQ(some.parameters, all.parameters);
  EXPECT_EQ(some.optimizer, 2 * some.gradients);
}

TEST(StageMemory, DoublePrecisionDoublesAllButTheSamples) {
  StepSettings settings = tiny_step({}, 1, 1);
  const StageMemory single = stage_memory(build_training_step(settings), 0);
  settings.precision = "fp64";
  const StageMemory twice = stage_memory(build_training_step(settings), 0);
  EXPECT_EQ(twice.activations - samples, 2 * (single.activations - samples));
  EXPECT_EQ(twice.parameters, 2 * single.parameters);
  EXPECT_EQ(twice.gradients, 2 * single.gradients);
  EXPECT_EQ(twice.optimizer, 2 * single.optimizer);
}

StepSettings large_step(ModelConfig model, Layout layout) {
  StepSettings settings;
  settings.model = model;
  settings.parallel.layout = layout;
  settings.sequence_length = 2048;
  return settings;
}

TEST(StageMemory, TensorParallelismDoesNotDivideNorms) {  // T06
  const ModelConfig model{.family = ModelFamily::llama, .vocab_size = 32000, .hidden_size = 4096, .num_hidden_layers = 32,
                          .num_attention_heads = 32, .num_key_value_heads = 32, .head_dim = 128,
                          .intermediate_size = 11008, .max_position_embeddings = 4096};
  EXPECT_EQ(stage_memory(build_training_step(large_step(model, {})), 0).parameters, 6738415616.0 * 4);
  EXPECT_EQ(stage_memory(build_training_step(large_step(model, {.tp = 2})), 0).parameters, 3369340928.0 * 4);
}

TEST(StageMemory, ATiedTableLiesOnTheFirstAndOnTheLastStage) {  // T01
  ModelConfig model{.family = ModelFamily::llama, .vocab_size = 128256, .hidden_size = 2048, .num_hidden_layers = 16,
                    .num_attention_heads = 32, .num_key_value_heads = 8, .head_dim = 64, .intermediate_size = 8192,
                    .max_position_embeddings = 4096, .tie_word_embeddings = true};
  const double table = 262668288.0 * 4, whole = 1235814400.0 * 4;
  EXPECT_EQ(stage_memory(build_training_step(large_step(model, {})), 0).parameters, whole);
  for (const int pp : {2, 4}) {
    const TrainingStep step = build_training_step(large_step(model, {.pp = pp}));
    double sum = 0;
    for (int stage = 0; stage < pp; ++stage) sum += stage_memory(step, stage).parameters;
    EXPECT_EQ(sum, whole + table) << pp;
    EXPECT_GT(stage_memory(step, 0).parameters, table);
    EXPECT_GT(stage_memory(step, pp - 1).parameters, table);
    EXPECT_EQ(stage_memory(step, pp - 1).logits, 2048.0 * 128256 * 4);
    EXPECT_EQ(stage_memory(step, 0).logits, 0);
  }
}

}  // namespace
}  // namespace paceline
