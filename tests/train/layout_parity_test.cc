#include "training_run.h"

#include "paceline/base/error.h"

#include <gtest/gtest.h>

#include <ostream>

namespace paceline {
namespace {

constexpr std::int64_t sequence_length = 16;

TrainingRun case_of(const ModelConfig& model, const Layout& layout, std::int64_t global_batch, std::int64_t micro_batch,
                    const std::string& precision) {
  TrainingRun run;
  run.model = model;
  run.options.layout = layout;
  run.precision = precision;
  run.batch = {.micro_batch_size = micro_batch, .micro_batches = global_batch / (micro_batch * layout.dp),
               .sequence_length = sequence_length};
  return run;
}

struct ParityCase {
  std::string family;
  std::string precision;
  bool accumulates;
};

void PrintTo(const ParityCase& at, std::ostream* stream) { *stream << at.family << " " << at.precision; }

class LayoutParity : public ::testing::TestWithParam<ParityCase> {};

// Every layout of {1,2}^3 and (1,1,4) trains like one rank: loss and norm of 20 steps, every gradient of step 1.
TEST_P(LayoutParity, EqualsOneRank) {
  const ParityCase& at = GetParam();
  const ModelConfig model = at.family == "llama" ? tiny_llama() : tiny_gpt2();
  const double tolerance = at.precision == "fp64" ? 1e-9 : 1e-5;
  const std::int64_t global_batch = at.accumulates ? 8 : 4;
  const std::int64_t micro_batch = at.accumulates ? 1 : 2;
  const TrainingOutcome one = run_as_threads(case_of(model, {}, global_batch, global_batch, at.precision));
  std::vector<Layout> layouts = {{.dp = 1, .tp = 1, .pp = 4}};
  for (int dp = 1; dp <= 2; ++dp) {
    for (int tp = 1; tp <= 2; ++tp) {
      for (int pp = 1; pp <= 2; ++pp) layouts.push_back({.dp = dp, .tp = tp, .pp = pp});
    }
  }
  for (const Layout& layout : layouts) {
    const TrainingRun run = case_of(model, layout, global_batch, micro_batch, at.precision);
    expect_equal_runs(one, run_as_threads(run), tolerance, layout.text());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LayoutParity,
                         ::testing::Values(ParityCase{"llama", "fp64", false}, ParityCase{"llama", "fp64", true},
                                           ParityCase{"gpt2", "fp64", false}, ParityCase{"gpt2", "fp64", true},
                                           ParityCase{"llama", "fp32", true}, ParityCase{"gpt2", "fp32", true}),
                         [](const auto& info) {
                           return info.param.family + "_" + info.param.precision + (info.param.accumulates ? "_accumulated" : "");
                         });

TEST(LayoutParity, SameLayoutTwiceIsBitIdentical) {
  for (const Layout& layout : {Layout{}, Layout{.dp = 2, .tp = 2, .pp = 2}}) {
    TrainingRun run = case_of(tiny_llama(), layout, 8, 1, "fp32");
    run.steps = 6;
    const TrainingOutcome first = run_as_threads(run), second = run_as_threads(run);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.norms, second.norms);
    for (const auto& [tensor, weight] : first.weights) EXPECT_TRUE(weight.equal(second.weights.at(tensor))) << tensor;
  }
}

}  // namespace
}  // namespace paceline
