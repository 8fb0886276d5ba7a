#include "paceline/train/stage_runner.h"

#include "paceline/arch/operation_cost.h"
#include "training_run.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include <gtest/gtest.h>

namespace paceline {
namespace {

MicroBatchData random_micro_batch(std::int64_t sequences, std::int64_t length, std::int64_t vocab_size) {
  return {.tokens = at::randint(vocab_size, {sequences, length}, at::kLong), .targets = at::randint(vocab_size, {sequences, length}, at::kLong),
          .mask = at::ones({sequences, length}, at::kByte)};
}

// Two micro-batches, the halves of the backward apart: the same weight gradients, bit for bit; but for GPT-2's tied table,
// whose two parts are then added up in another order.
TEST(StageRunner, SplitBackwardEqualsFused) {
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt2()}) {
    const Program program = build_rank_program(model, {}, {});
    MemoryAccount account;
    ModelState fused(program, 0, parse_precision("fp32"), 1 << 20, true, account), split(program, 0, parse_precision("fp32"), 1 << 20, true, account);
    fused.initialize_weights(1);
    split.initialize_weights(1);
    StageRunner fused_runner(program, fused, nullptr, 16, account), split_runner(program, split, nullptr, 16, account);
    const MicroBatchData first = random_micro_batch(2, 16, model.vocab_size), second = random_micro_batch(2, 16, model.vocab_size);

    fused_runner.begin_step();
    fused_runner.backward(fused_runner.forward(first, {}, 0.1, {}), {}, {});
    fused_runner.backward(fused_runner.forward(second, {}, 0.1, {}), {}, {});

    split_runner.begin_step();
    auto pass_1 = split_runner.forward(first, {}, 0.1, {});
    auto pass_2 = split_runner.forward(second, {}, 0.1, {});
    split_runner.backward_input(*pass_1, {}, {});
    split_runner.backward_input(*pass_2, {}, {});
    split_runner.backward_weight(std::move(pass_1), {});
    split_runner.backward_weight(std::move(pass_2), {});
    for (std::size_t i = 0; i < program.parameters.size(); ++i) {
      const int index = static_cast<int>(i);
      const bool tied = model.tie_word_embeddings && program.parameters[i].name == "embedding.weight";
      EXPECT_TRUE(tied ? close(fused.gradient(index), split.gradient(index), 1e-6, 1.0)
                       : ::testing::AssertionResult(fused.gradient(index).equal(split.gradient(index))))
          << program.parameters[i].name;
    }
  }
}

// What the operations declare to save is what the allocator holds between a forward and its backward.
TEST(StageRunner, HoldsWhatTheOperationsDeclare) {
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt2()}) {
    const Program program = build_rank_program(model, {}, {});
    MemoryAccount account;
    install_accounting_allocator();
    ModelState state(program, 0, parse_precision("fp32"), 1 << 20, true, account);
    state.initialize_weights(1);
    StageRunner runner(program, state, nullptr, 32, account);
    const MicroBatchData data = random_micro_batch(2, 32, model.vocab_size);
    const auto activations = [&] { return account.use().live[static_cast<std::size_t>(MemoryClass::activations)]; };
    const auto before = activations();
    auto pass = runner.forward(data, {}, 0.1, {});
    const MicroBatch shape{.sequences = 2, .sequence_length = 32, .element_bytes = 4};
    // The tokens themselves are the caller's.
    const double declared = saved_bytes(program, shape) - value_bytes(program, program.tokens, shape);
    EXPECT_EQ(static_cast<double>(activations() - before), declared) << family_name(model.family);
    runner.begin_step();
    runner.backward(std::move(pass), {}, {});
    EXPECT_EQ(activations(), before) << family_name(model.family);
  }
}

// Looking does not change the run: evaluation leaves weights and gradients alone and saves nothing.
TEST(StageRunner, EvaluationGivesTheTrainingLossAndKeepsNothing) {
  const ModelConfig model = tiny_llama();
  const Program program = build_rank_program(model, {}, {});
  MemoryAccount account;
  install_accounting_allocator();
  ModelState state(program, 0, parse_precision("fp32"), 1 << 20, true, account);
  state.initialize_weights(1);
  StageRunner runner(program, state, nullptr, 32, account);
  const MicroBatchData data = random_micro_batch(2, 32, model.vocab_size);
  const auto before = account.use().live_total;
  const double evaluated = runner.evaluate(data, {}, false, {}).loss_sum;
  EXPECT_EQ(account.use().live_total, before);
  const auto pass = runner.forward(data, {}, 0.1, {});
  EXPECT_EQ(StageRunner::loss_sum(*pass), evaluated);
}

}  // namespace
}  // namespace paceline
