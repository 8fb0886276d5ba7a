#include "paceline/plan/cost_model.h"

#include "planned_models.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

int index_of(const Program& program, const std::string& name) {
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    if (program.operations[i].name == name) return static_cast<int>(i);
  }
  throw std::runtime_error("no operation " + name);
}

/// 1 GFLOP/s products, 0.5 / 0.25 GFLOP/s attention, 1 GB/s memory, messages of 1 ms + 1 ns a byte.
Place slow_place(int cores) {
  MachineProfile profile = built_in_profile(cores);
  profile.products = {{.tokens = 6, .in = 8, .out = 8, .flops_per_s = 1e9}};
  profile.attention = {{.sequence_length = 3, .head_dim = 4, .forward_flops_per_s = 0.5e9, .backward_flops_per_s = 0.25e9}};
  profile.memory = {{.bytes_per_s = 1e9}};
  profile.operations = {{.operation = "swiglu", .forward_bytes_per_s = 2e9, .backward_bytes_per_s = 4e9},
                        {.operation = "optimizer_step", .forward_bytes_per_s = 8e9}};
  profile.messages = {{.operation = "all_reduce", .ranks = 2, .bytes = 0, .seconds = 1e-3},
                      {.operation = "all_reduce", .ranks = 2, .bytes = 1e6, .seconds = 2e-3},
                      {.operation = "send", .ranks = 2, .bytes = 0, .seconds = 1e-4},
                      {.operation = "send", .ranks = 2, .bytes = 1e6, .seconds = 1e-4 + 1e-3}};
  profile.operation_overhead_s = 1e-6;
  profile.action_overhead_s = 0;
  return {.profile = profile, .cores = cores, .backend = "gloo"};
}

TEST(CostModel, OperationsFollowTheRoofline) {
  const TrainingStep step = build_training_step(tiny_step({}, 1, 1));
  const Place place = slow_place(1);
  const CostModel costs(step, place);
  const Program& program = step.stages[0];
  // qkv: 2 x 6 x 8 x 16 FLOP at 1 GFLOP/s takes longer than its (48 + 96 + 128) x 4 bytes at 1 GB/s.
  const int qkv = index_of(program, "layers.0.attention.qkv");
  EXPECT_NEAR(costs.operation(0, ActionKind::forward, qkv).compute_s, 1536e-9 + 1e-6, 1e-15);
  // Its weight's gradient is read and written: (48 + 96 + 2 x 128) x 4 bytes take longer than the arithmetic.
  EXPECT_NEAR(costs.operation(0, ActionKind::backward, qkv).compute_s, 1536e-9 + 1600e-9 + 2e-6, 1e-15);
  // swiglu: 6 x (24 + 12) x 4 bytes at 2 GB/s; back 6 x (2 x 24 + 12) x 4 at 4 GB/s.
  const int swiglu = index_of(program, "layers.0.mlp.swiglu");
  EXPECT_NEAR(costs.operation(0, ActionKind::forward, swiglu).compute_s, 432e-9 + 1e-6, 1e-15);
  EXPECT_NEAR(costs.operation(0, ActionKind::backward_input, swiglu).compute_s, 360e-9 + 1e-6, 1e-15);
  EXPECT_EQ(costs.operation(0, ActionKind::backward_weight, swiglu).total(), 0);
  // attention is bound by its bytes here: (96 + 48 + 12) x 4 at 1 GB/s against 288 FLOP at 0.5 GFLOP/s.
  const int attention = index_of(program, "layers.0.attention");
  EXPECT_NEAR(costs.operation(0, ActionKind::forward, attention).compute_s, 624e-9 + 1e-6, 1e-15);
}

TEST(CostModel, TensorGroupsPayForTheirMessages) {
  const TrainingStep step = build_training_step(tiny_step({.tp = 2}, 1, 1));
  StepSettings whole = tiny_step({.tp = 2}, 1, 1);
  const Place place = slow_place(2);
  const CostModel costs(step, place);
  const int sum = index_of(step.stages[0], "layers.0.attention.output.sum");
  EXPECT_NEAR(costs.operation(0, ActionKind::forward, sum).message_s, 1e-3 + 6 * 8 * 4 * 1e-9, 1e-12);
  EXPECT_EQ(costs.operation(0, ActionKind::backward, sum).message_s, 0);
  const int loss = index_of(step.stages[0], "cross_entropy");
  EXPECT_NEAR(costs.operation(0, ActionKind::forward, loss).message_s, 2 * (1e-3 + 36e-9), 1e-12);
}

TEST(CostModel, TransfersAndUpdates) {
  const TrainingStep step = build_training_step(tiny_step({.dp = 2, .pp = 2}, 2, 2));
  const Place place = slow_place(4);
  const CostModel costs(step, place);
  EXPECT_NEAR(costs.transfer_s(), 1e-4 + 6 * 8 * 4 * 1e-9, 1e-12);
  const double elements = static_cast<double>(step.buckets[0].elements);
  EXPECT_NEAR(costs.action(0, {.kind = ActionKind::optimizer_step}).compute_s, 7 * elements * 4 / 8e9, 1e-15);
  EXPECT_NEAR(costs.bucket_s(0, 0), 1e-3 + elements * 4e-9, 1e-12);
  EXPECT_EQ(costs.action(0, {.kind = ActionKind::receive_gradient, .micro_batch = 0, .peer = 1}).total(), 0);
  EXPECT_NEAR(costs.action(0, {.kind = ActionKind::gradient_norm}).message_s, 2 * 1e-3, 1e-7);  // log2 of 4 ranks
}

TEST(CostModel, RanksShareCoresByThreads) {
  const TrainingStep step = build_training_step(tiny_step({.dp = 2}, 1, 1));
  for (const auto& [cores, threads] : {std::pair{1, 1}, {2, 1}, {4, 2}, {7, 3}}) {
    const Place place = slow_place(cores);
    EXPECT_EQ(CostModel(step, place).threads_per_rank(), threads) << cores;
  }
  Place place = slow_place(8);
  place.threads_per_rank = 3;
  EXPECT_EQ(CostModel(step, place).threads_per_rank(), 3);
}

TEST(CostModel, BucketsFillFromTheBack) {
  StepSettings settings = tiny_step({.dp = 2}, 2, 1);
  settings.bucket_bytes = 256;
  const TrainingStep step = build_training_step(settings);
  const Place place = second_per_call(2);
  const CostModel costs(step, place);
  const int count = static_cast<int>(step.buckets[0].buckets.size());
  ASSERT_GE(count, 3);
  double before = 0;
  for (int bucket = 0; bucket < count; ++bucket) {
    EXPECT_GT(costs.bucket_ready_share(0, bucket), before);
    before = costs.bucket_ready_share(0, bucket);
  }
  EXPECT_EQ(before, 1.0);  // the embedding's is complete with the last operation
}

}  // namespace
}  // namespace paceline
