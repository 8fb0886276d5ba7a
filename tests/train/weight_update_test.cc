#include "training_run.h"

#include <ATen/ops/equal.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

namespace paceline {
namespace {

TrainingRun run_of(const ModelConfig& model, const Layout& layout, int steps) {
  TrainingRun run;
  run.model = model;
  run.model.num_hidden_layers = 4;
  run.options.layout = layout;
  run.steps = steps;
  run.batch = {.micro_batch_size = 1, .micro_batches = 12 / layout.dp, .sequence_length = 8};
  return run;
}

int parameter_named(const Program& program, const std::string& huggingface_name) {
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    for (const Block& block : program.parameters[i].blocks) {
      if (block.tensor == huggingface_name) return static_cast<int>(i);
    }
  }
  return -1;
}

// The table on the first stage and the head on the last are one weight: equal bit for bit after each step.
TEST(WeightUpdate, TiedWeightsStayEqualOnEveryStage) {
  ModelConfig llama = tiny_llama();
  llama.tie_word_embeddings = true;
  for (const auto& [model, name] :
       {std::pair{llama, "model.embed_tokens.weight"}, std::pair{tiny_gpt2(), "transformer.wte.weight"}}) {
    const TrainingOutcome one = run_as_threads(run_of(model, {}, 5));
    for (const Layout& layout :
         {Layout{.pp = 2}, Layout{.pp = 4}, Layout{.dp = 1, .tp = 2, .pp = 2}, Layout{.dp = 2, .tp = 1, .pp = 2}}) {
      TrainingRun run = run_of(model, layout, 5);
      std::mutex mutex;
      std::map<std::pair<int, int>, std::vector<at::Tensor>> tables;  // by (step, tensor-parallel rank)
      run.after_step = [&, name = name](int step, const Coordinate& at, const Program& program, ModelState& state) {
        const int index = parameter_named(program, name);
        if (index < 0) return;
        EXPECT_TRUE(at.pp == 0 || at.pp == layout.pp - 1);
        const std::lock_guard lock(mutex);
        tables[{step, at.tp}].push_back(state.weight(index).clone());
      };
      const TrainingOutcome outcome = run_as_threads(run);
      expect_equal_runs(one, outcome, 1e-9, layout.text());
      EXPECT_EQ(tables.size(), 5u * layout.tp);
      for (const auto& [at, copies] : tables) {
        ASSERT_EQ(copies.size(), 2u * layout.dp) << layout.text();
        for (const at::Tensor& copy : copies)
          EXPECT_TRUE(at::equal(copies[0], copy)) << layout.text() << " step " << at.first;
      }
      EXPECT_FALSE(outcome.weights.contains("lm_head.weight"));
    }
  }
}

// One step with decay 0 and one with 0.5 differ by rate x decay x old weight in matrices and embeddings, and by
// nothing in norms and biases.
TEST(WeightUpdate, DecaySparesNormsAndBiases) {
  constexpr double rate = 0.01, decay = 0.5;
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt2()}) {
    for (const Layout& layout : {Layout{}, Layout{.dp = 2, .tp = 2, .pp = 1}}) {
      const auto weights_with = [&](int steps, double learning_rate, double weight_decay) {
        TrainingRun run = run_of(model, layout, steps);
        run.learning_rate = learning_rate;
        run.weight_decay = weight_decay;
        return run_as_threads(run).weights;
      };
      const auto old = weights_with(1, 0.0, 0.0), without = weights_with(1, rate, 0.0),
                 with = weights_with(1, rate, decay);
      int spared = 0, decayed = 0;
      for (const auto& [name, weight] : with) {
        const at::Tensor difference = without.at(name).sub(weight);
        const bool is_vector = weight.dim() == 1;
        EXPECT_EQ(is_vector, name.find("bias") != std::string::npos || name.find("norm") != std::string::npos ||
                                 name.find("ln_") != std::string::npos)
            << name;
        if (is_vector) {
          EXPECT_TRUE(at::equal(without.at(name), weight)) << name;
          ++spared;
        } else {
          const at::Tensor expected = old.at(name).mul(rate * decay);
          EXPECT_LT(difference.sub(expected).abs().max().item().toDouble(), 1e-14) << name;
          EXPECT_GT(expected.abs().max().item().toDouble(), 1e-4) << name;
          ++decayed;
        }
      }
      EXPECT_GT(spared, 4);
      EXPECT_GT(decayed, 4);
    }
  }
}

// One bad number in one rank's weights makes the gradients of that step bad: no rank changes a bit, and once the
// number is mended the run goes on as if that step had not been.
TEST(WeightUpdate, ABadGradientIsSkippedOnAllRanks) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const Layout& layout :
         {Layout{.dp = 2}, Layout{.tp = 2}, Layout{.pp = 2}, Layout{.dp = 2, .tp = 2, .pp = 2}}) {
      TrainingRun run = run_of(tiny_llama(), layout, 6);
      std::mutex mutex;
      std::map<std::pair<int, int>, at::Tensor> weights, moments;  // by (step, rank)
      const int bad_rank = layout.world_size() - 1;
      std::optional<at::Tensor> whole;
      run.after_step = [&](int step, const Coordinate& at, const Program&, ModelState& state) {
        const std::lock_guard lock(mutex);
        const int rank = layout.rank(at);
        weights[{step, rank}] = state.flat_weights.clone();
        moments[{step, rank}] = state.second_moments.clone();
        if (rank != bad_rank) return;
        if (step == 4) {
          whole = state.flat_weights.clone();
          state.flat_weights.slice(0, 0, 1).fill_(bad);
          weights[{step, rank}] = state.flat_weights.clone();
        } else if (step == 5) {
          EXPECT_TRUE(std::isnan(bad) ? state.flat_weights[0].isnan().item().toBool()
                                      : state.flat_weights[0].isinf().item().toBool());
          state.flat_weights.copy_(*whole);
        }
      };
      const TrainingOutcome outcome = run_as_threads(run);
      EXPECT_EQ(outcome.updated, (std::vector<bool>{true, true, true, true, false, true})) << layout.text();
      for (int rank = 0; rank < layout.world_size(); ++rank) {
        EXPECT_TRUE(at::equal(moments.at({4, rank}), moments.at({5, rank}))) << layout.text() << " rank " << rank;
        if (rank != bad_rank)
          EXPECT_TRUE(at::equal(weights.at({4, rank}), weights.at({5, rank}))) << layout.text() << " rank " << rank;
        EXPECT_FALSE(at::equal(moments.at({5, rank}), moments.at({6, rank}))) << layout.text() << " rank " << rank;
      }
      EXPECT_TRUE(std::isfinite(outcome.losses[5]));
      for (const auto& [name, weight] : outcome.weights) EXPECT_TRUE(weight.isfinite().all().item().toBool()) << name;
    }
  }
}

// Frozen parameters keep every bit, decay included, and are not counted in the norm; the others train alike in all
// layouts.
TEST(WeightUpdate, FrozenParametersKeepEveryBit) {
  const auto frozen_run = [](const Layout& layout, int steps) {
    TrainingRun run = run_of(tiny_llama(), layout, steps);
    run.options.frozen = {R"(model\.layers\.[02]\..*)", R"(model\.embed_tokens\.weight)", R"(.*norm\.weight)"};
    run.weight_decay = 0.5;
    run.learning_rate = 0.01;
    return run_as_threads(run);
  };
  TrainingRun untouched = run_of(tiny_llama(), {}, 1);
  untouched.learning_rate = 0;
  const TrainingOutcome initial = run_as_threads(untouched);
  const TrainingOutcome one = frozen_run({}, 4);
  for (const Layout& layout : {Layout{}, Layout{.dp = 2, .tp = 2, .pp = 2}, Layout{.pp = 4}}) {
    const TrainingOutcome outcome = frozen_run(layout, 4);
    expect_equal_runs(one, outcome, 1e-9, layout.text());
    int frozen = 0;
    for (const auto& [name, weight] : outcome.weights) {
      const bool is_frozen = name.starts_with("model.layers.0.") || name.starts_with("model.layers.2.") ||
                             name == "model.embed_tokens.weight" || name.ends_with("norm.weight");
      EXPECT_EQ(at::equal(weight, initial.weights.at(name)), is_frozen) << name << " " << layout.text();
      EXPECT_EQ(outcome.first_gradients.contains(name), !is_frozen) << name;
      frozen += is_frozen;
    }
    EXPECT_GT(frozen, 10);
  }
}

}  // namespace
}  // namespace paceline
