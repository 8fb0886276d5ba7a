#include "training_run.h"

#include <gtest/gtest.h>

#include <mutex>

namespace paceline {
namespace {

constexpr double tolerance = 1e-9;

TrainingRun run_of(const ModelConfig& model, const Layout& layout, std::int64_t micro_batches) {
  TrainingRun run;
  run.model = model;
  run.options.layout = layout;
  run.steps = 3;
  run.batch = {.micro_batch_size = 12 / micro_batches, .micro_batches = micro_batches, .sequence_length = 8};
  return run;
}

TrainingOutcome one_rank(const ModelConfig& model) { return run_as_threads(run_of(model, {}, 1)); }

ModelConfig llama(std::int64_t layers, std::int64_t heads = 4, std::int64_t kv_heads = 2) {
  ModelConfig model = tiny_llama();
  model.num_hidden_layers = layers;
  model.num_attention_heads = heads;
  model.num_key_value_heads = kv_heads;
  model.head_dim = model.hidden_size / heads;
  return model;
}

// Layers that do not divide over the stages are each there once.
TEST(UnevenLayouts, StagesOfDifferentSizeTrainLikeOneRank) {
  for (const auto& [layers, stages] : {std::pair{5, 2}, std::pair{7, 4}}) {
    const ModelConfig model = llama(layers);
    TrainingRun run = run_of(model, {.pp = stages}, 4);
    const TrainingOutcome one = one_rank(model);
    expect_equal_runs(one, run_as_threads(run), tolerance, run.options.layout.text());
    run.options.layers_per_stage =
        layers == 5 ? std::vector<std::int64_t>{1, 4} : std::vector<std::int64_t>{1, 3, 1, 2};
    expect_equal_runs(one, run_as_threads(run), tolerance, "explicit split");
  }
}

// Fewer micro-batches than stages, with both schedules: a bubble, but never a hang.
TEST(UnevenLayouts, FewerMicroBatchesThanStages) {
  const ModelConfig model = llama(4);
  const TrainingOutcome one = one_rank(model);
  for (const PipelineSchedule schedule : {PipelineSchedule::one_forward_one_backward, PipelineSchedule::gpipe}) {
    for (const std::int64_t micro_batches : {1, 2, 3}) {
      TrainingRun run = run_of(model, {.pp = 4}, micro_batches);
      run.schedule = schedule;
      expect_equal_runs(one, run_as_threads(run), tolerance, std::to_string(micro_batches) + " micro-batches");
    }
  }
}

// Fewer key/value heads than tensor-parallel ranks; each query still sees the right one.
TEST(UnevenLayouts, ReplicatedKeyValueHeads) {
  for (const auto& [heads, kv_heads, tp] : {std::tuple{8, 2, 4}, std::tuple{4, 1, 2}, std::tuple{4, 1, 4}}) {
    const ModelConfig model = llama(2, heads, kv_heads);
    const TrainingOutcome one = one_rank(model);
    expect_equal_runs(one, run_as_threads(run_of(model, {.tp = tp}, 2)), tolerance, "tp " + std::to_string(tp));
    expect_equal_runs(one, run_as_threads(run_of(model, {.dp = 1, .tp = tp, .pp = 2}, 2)), tolerance, "with stages");
  }
}

TEST(UnevenLayouts, AHeadWidthThatIsNotTheQuotient) {
  ModelConfig model = llama(2, 5, 1);
  model.hidden_size = 40;
  model.intermediate_size = 80;
  for (const std::int64_t width : {8, 16}) {
    model.head_dim = width;
    expect_equal_runs(one_rank(model), run_as_threads(run_of(model, {.tp = 5}, 2)), tolerance,
                      "head width " + std::to_string(width));
  }
}

// A vocabulary that does not divide is padded inside: the padding gets no probability and no gradient.
TEST(UnevenLayouts, AVocabularyThatDoesNotDivide) {
  for (const bool tied : {false, true}) {
    ModelConfig model = llama(2, 4, 4);
    model.tie_word_embeddings = tied;
    ASSERT_EQ(model.vocab_size, 131);
    const TrainingOutcome one = one_rank(model);
    for (const int tp : {2, 4}) {
      TrainingRun run = run_of(model, {.tp = tp}, 2);
      std::mutex mutex;
      bool padding_is_zero = true;
      run.after_step = [&](int, const Coordinate&, const Program& program, ModelState& state) {
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < program.parameters.size(); ++i) {
          const Parameter& parameter = program.parameters[i];
          if (parameter.name != "embedding.weight" && parameter.name != "head.weight") continue;
          std::int64_t rows = 0;
          for (const Block& block : parameter.blocks) rows += block.extent[0];
          const at::Tensor weight = state.weight(static_cast<int>(i));
          const at::Tensor padding = weight.slice(0, rows);
          padding_is_zero = padding_is_zero && !padding.abs().gt(0).any().item().toBool();
        }
      };
      const TrainingOutcome outcome = run_as_threads(run);
      expect_equal_runs(one, outcome, tolerance, "tp " + std::to_string(tp));
      EXPECT_TRUE(padding_is_zero);
    }
  }
}

}  // namespace
}  // namespace paceline
