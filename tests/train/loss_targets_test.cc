#include "training_run.h"

#include "paceline/base/philox.h"

#include <ATen/ops/equal.h>

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

namespace paceline {
namespace {

/// Samples of which number n counts `counted(n)` of its targets, from the first on.
class CountedSamples : public SampleSource {
 public:
  CountedSamples(std::int64_t sequence_length, std::function<std::int64_t(std::uint64_t)> counted)
      : tokens_(sequence_length, 131, 0), counted_(std::move(counted)) {}
  std::int64_t sequence_length() const override { return tokens_.sequence_length(); }
  void read(std::uint64_t sample, std::span<std::int64_t> tokens, std::span<std::int32_t> document_ids,
            std::span<std::uint8_t> loss_mask) const override {
    tokens_.read(sample, tokens, document_ids, loss_mask);
    for (std::size_t i = 0; i < loss_mask.size(); ++i) loss_mask[i] = static_cast<std::int64_t>(i) < counted_(sample);
  }

 private:
  RandomSamples tokens_;
  std::function<std::int64_t(std::uint64_t)> counted_;
};

constexpr std::int64_t sequence_length = 8;

TrainingRun run_of(const Layout& layout, std::int64_t micro_batch, std::int64_t micro_batches,
                   std::function<std::int64_t(std::uint64_t)> counted) {
  TrainingRun run;
  run.model = tiny_llama();
  run.model.num_hidden_layers = 2;
  run.options.layout = layout;
  run.steps = 3;
  run.batch = {.micro_batch_size = micro_batch, .micro_batches = micro_batches, .sequence_length = sequence_length};
  run.source = std::make_shared<CountedSamples>(sequence_length, std::move(counted));
  return run;
}

// The loss is the mean over all counted targets, however they fall on micro-batches and ranks; a mean of means is
// not.
TEST(LossTargets, UnevenCountsGiveOneLossInEverySplit) {
  const auto counted = [](std::uint64_t sample) { return static_cast<std::int64_t>(sample * 5 % 9); };  // 0 to 8 of 8
  const TrainingOutcome whole = run_as_threads(run_of({}, 8, 1, counted));
  for (const auto& [dp, micro_batch, micro_batches] :
       {std::tuple{1, 4, 2}, std::tuple{1, 1, 8}, std::tuple{2, 4, 1}, std::tuple{2, 1, 4}, std::tuple{4, 1, 2}}) {
    const TrainingOutcome split = run_as_threads(run_of({.dp = dp}, micro_batch, micro_batches, counted));
    EXPECT_EQ(split.valid_targets, whole.valid_targets);
    expect_equal_runs(whole, split, 1e-12, "dp " + std::to_string(dp) + ", micro-batch " + std::to_string(micro_batch));
  }
  EXPECT_EQ(whole.valid_targets[0], 0 + 5 + 1 + 6 + 2 + 7 + 3 + 8);
}

// One counted target beside three: the step's loss is (a + 3 b) / 4 of the two micro-batches' own losses.
TEST(LossTargets, OneAndThreeTargets) {
  const auto loss_of = [](std::uint64_t only) {
    return run_as_threads(run_of({}, 1, 2,
                                 [only](std::uint64_t sample) -> std::int64_t {
                                   return sample != only ? 0 : sample == 0 ? 1 : 3;
                                 }))
        .losses[0];
  };
  const double both = run_as_threads(run_of({}, 1, 2, [](std::uint64_t sample) -> std::int64_t {
                        return sample == 0 ? 1 : 3;
                      })).losses[0];
  const double a = loss_of(0), b = loss_of(1);
  EXPECT_GT(std::abs(a - b), 0.01);  // or the mean of means would pass as well
  EXPECT_NEAR(both, (a + 3 * b) / 4, 1e-12);
}

// A step without a target changes nothing and says so; the steps around it are as ever. A data-parallel rank without a
// target takes part in all that the others do.
TEST(LossTargets, AStepWithoutTargetsChangesNothing) {
  for (const Layout& layout : {Layout{}, Layout{.dp = 2}, Layout{.dp = 1, .tp = 2, .pp = 2}}) {
    TrainingRun run =
        run_of(layout, 4 / layout.dp, 1, [](std::uint64_t sample) -> std::int64_t { return sample / 4 == 1 ? 0 : 8; });
    std::mutex mutex;
    std::map<std::pair<int, int>, at::Tensor> weights, moments;  // by (step, model coordinate)
    run.after_step = [&](int step, const Coordinate& at, const Program&, ModelState& state) {
      const std::lock_guard lock(mutex);
      if (at.dp != 0) return;
      weights[{step, at.pp * layout.tp + at.tp}] = state.flat_weights.clone();
      moments[{step, at.pp * layout.tp + at.tp}] = state.first_moments.clone();
    };
    const TrainingOutcome outcome = run_as_threads(run);
    EXPECT_EQ(outcome.updated, (std::vector<bool>{true, false, true})) << layout.text();
    EXPECT_EQ(outcome.valid_targets[1], 0);
    EXPECT_TRUE(std::isnan(outcome.losses[1]));
    EXPECT_TRUE(std::isfinite(outcome.losses[2]));
    for (int part = 0; part < layout.tp * layout.pp; ++part) {
      EXPECT_TRUE(at::equal(weights.at({1, part}), weights.at({2, part})));
      EXPECT_TRUE(at::equal(moments.at({1, part}), moments.at({2, part})));
      EXPECT_FALSE(at::equal(weights.at({2, part}), weights.at({3, part})));
    }
  }
  const auto first_rank_only = [](std::uint64_t sample) -> std::int64_t { return sample % 4 < 2 ? 8 : 0; };
  expect_equal_runs(run_as_threads(run_of({}, 4, 1, first_rank_only)),
                    run_as_threads(run_of({.dp = 2}, 2, 1, first_rank_only)), 1e-12, "a rank without targets");
}

}  // namespace
}  // namespace paceline
