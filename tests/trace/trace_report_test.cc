#include "paceline/trace/trace_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "paceline/base/error.h"
#include "paceline/trace/explanation.h"
#include "paceline/trace/report_format.h"
#include "synthetic_trace.h"

namespace paceline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double millisecond = 1e-3;

/// Two pipeline stages; the spans of step s are `scale[s]` times as long as written here.
void write_run(const TestFolder& run, const std::vector<double>& scales) {
  for (int rank = 0; rank < 2; ++rank) {
    TraceHeader header = test_header(rank, 2);
    header.coordinate = {{"pp", rank}};
    header.operations = {"layers.0.attention", "layers.0.mlp"};
    SyntheticTrace trace(header);
    double begin = 0;
    for (std::uint32_t step = 0; step < scales.size(); ++step) {
      const double unit = scales[step] * 1e6;  // a millisecond
      const auto add = [&](const char* name, double start, double duration, std::uint32_t action,
                           std::int32_t operation = no_operation, TraceLane lane = TraceLane::compute) {
        trace.span(name, step, static_cast<std::uint64_t>(begin + start * unit),
                   static_cast<std::uint64_t>(duration * unit), action, operation, lane);
      };
      if (rank == 0) {
        add("load", 0, 10, 0);
        add("attention", 10, 30, 1, 0);
        add("mlp", 40, 10, 1, 1);
        add("forward", 10, 40, 1);
        add("send_activation", 50, 20, 2, no_operation, TraceLane::communication);
        add("backward", 50, 30, 3);
        add("optimizer_step", 80, 15, 4);
      } else {
        add("receive_activation", 0, 50, 0);
        add("forward", 50, 15, 1);
        add("backward", 65, 20, 2);
        add("optimizer_step", 85, 10, 3);
      }
      add("step", 0, 100, no_action);
      begin += 110 * unit;
      if (step == 3) trace.span("evaluate", step, static_cast<std::uint64_t>(begin), 5'000'000);
      if (step == 3) trace.span("forward", step, static_cast<std::uint64_t>(begin + 1), 1'000'000, 0);
      begin += 10e6;
    }
    trace.write(run.path());
  }
}

PlanPrediction plan() {
  PlanPrediction plan;
  plan.step_time_s = 60 * millisecond;
  plan.parts = {
      {0, 0, "load", 0, 10 * millisecond},
      {0, 1, "forward", 10 * millisecond, 20 * millisecond},
      {0, 2, "send_activation", 30 * millisecond, 5 * millisecond},
      {0, 3, "backward", 30 * millisecond, 20 * millisecond},
      {0, 4, "optimizer_step", 50 * millisecond, 10 * millisecond},
      {1, 0, "receive_activation", 0, 30 * millisecond},
      {1, 1, "forward", 30 * millisecond, 10 * millisecond},
      {1, 2, "backward", 40 * millisecond, 10 * millisecond},
  };
  plan.operations = {{0, "forward", 0, "layers.0.attention", 8 * millisecond},
                     {0, "forward", 1, "layers.0.mlp", 12 * millisecond}};
  plan.index();
  return plan;
}

const Timing& part(const std::array<Timing, step_part_names.size()>& parts, StepPart which) {
  return parts[static_cast<std::size_t>(which)];
}

template <typename Get>
double sum_of(const std::array<Timing, step_part_names.size()>& parts, Get get) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [&](double sum, const Timing& timing) { return sum + get(timing); });
}

// Steps 2, 3 and 4 are 1, 1 and 2.5 times as long as written: the mean is 1.5, the median 1.
TEST(TraceReport, NumbersOfASyntheticRun) {
  const TestFolder run;
  write_run(run, {9, 7, 1, 1, 2.5});
  const TraceReport report = build_trace_report(read_run_traces(run.path()), plan());
  EXPECT_EQ(report.steps, (std::vector<std::uint32_t>{2, 3, 4}));
  EXPECT_EQ(report.skipped, 2u);
  ASSERT_EQ(report.ranks.size(), 2u);
  EXPECT_TRUE(report.planned);

  const RankReport& first = report.ranks[0];
  EXPECT_NEAR(first.step.mean, 150 * millisecond, 1e-9);
  EXPECT_NEAR(first.step.median, 100 * millisecond, 1e-9);
  EXPECT_NEAR(*first.step.predicted, 60 * millisecond, 1e-12);
  const auto expect = [](const Timing& timing, double mean_ms, double median_ms, double predicted_ms) {
    EXPECT_NEAR(timing.mean, mean_ms * millisecond, 1e-9);
    EXPECT_NEAR(timing.median, median_ms * millisecond, 1e-9);
    ASSERT_TRUE(timing.predicted);
    EXPECT_NEAR(*timing.predicted, predicted_ms * millisecond, 1e-9);
  };
  expect(part(first.parts, StepPart::load), 15, 10, 10);
  expect(part(first.parts, StepPart::forward), 60, 40, 20);
  expect(part(first.parts, StepPart::backward), 45, 30, 20);
  expect(part(first.parts, StepPart::exchange), 0, 0, 0);  // the send is hidden behind the backward
  expect(part(first.parts, StepPart::optimizer_step), 22.5, 15, 10);
  expect(part(first.parts, StepPart::idle), 7.5, 5, 0);

  const RankReport& second = report.ranks[1];
  expect(part(second.parts, StepPart::exchange), 75, 50, 30);
  expect(part(second.parts, StepPart::forward), 22.5, 15, 10);
  expect(part(second.parts, StepPart::backward), 30, 20, 10);
  expect(part(second.parts, StepPart::optimizer_step), 15, 10, 0);
  expect(part(second.parts, StepPart::idle), 7.5, 5, 10);
  expect(second.kinds.at("receive_activation"), 75, 50, 30);

  // The parts add up to the step, measured and planned, for each rank and over the ranks.
  const auto mean = [](const Timing& timing) { return timing.mean; };
  const auto predicted = [](const Timing& timing) { return timing.predicted.value_or(0); };
  for (const RankReport& rank : report.ranks) {
    EXPECT_NEAR(sum_of(rank.parts, mean), rank.step.mean, 1e-12);
    EXPECT_NEAR(sum_of(rank.parts, predicted), 60 * millisecond, 1e-12);
  }
  EXPECT_NEAR(sum_of(report.parts, mean), report.step.mean, 1e-12);
  expect(part(report.parts, StepPart::forward), 41.25, 27.5, 15);

  ASSERT_EQ(report.operations.size(), 2u);
  EXPECT_EQ(report.operations[0].name, "layers.0.attention");
  EXPECT_EQ(report.operations[0].action_kind, "forward");
  EXPECT_NEAR(report.operations[0].mean, 45 * millisecond, 1e-9);
  EXPECT_EQ(report.operations[0].executions, 1);
  EXPECT_NEAR(report.operations[0].difference(), 37 * millisecond, 1e-9);
  EXPECT_NEAR(report.operations[1].difference(), 3 * millisecond, 1e-9);

  // The evaluation lies between the steps, and the forward inside it is not a forward of the step.
  ASSERT_EQ(report.between_steps.size(), 1u);
  EXPECT_EQ(report.between_steps[0].kind, "evaluate");
  EXPECT_EQ(report.between_steps[0].count, 1);
  EXPECT_NEAR(report.between_steps[0].total_s, 5 * millisecond, 1e-9);

  EXPECT_EQ(explain(report), "forward on rank 0 takes 40 % of the step (60.0 ms), 3.0 x the plan, most of it in "
                             "attention (37.0 ms of 40.0 ms)");
}

TEST(TraceReport, OneStep) {
  const TestFolder run;
  write_run(run, {9, 7, 1, 1, 2.5});
  const RunTraces traces = read_run_traces(run.path());
  const TraceReport report = build_trace_report(traces, plan(), 4);
  EXPECT_EQ(report.steps, std::vector<std::uint32_t>{4});
  EXPECT_NEAR(report.step.mean, 250 * millisecond, 1e-9);
  try {
    build_trace_report(traces, plan(), 5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 5 was not recorded whole on all ranks; steps between 0 and 4 were"));
    EXPECT_EQ(error.code(), ExitCode::usage);
  }
}

TEST(TraceReport, WithoutAPlan) {
  const TestFolder run;
  write_run(run, {9, 7, 1, 1, 2.5});
  const TraceReport report = build_trace_report(read_run_traces(run.path()), std::nullopt);
  EXPECT_FALSE(report.planned);
  EXPECT_FALSE(report.step.predicted);
  EXPECT_NEAR(part(report.parts, StepPart::forward).mean, 41.25 * millisecond, 1e-9);
  EXPECT_THAT(report.notices, Contains(HasSubstr("no plan.json")));
  EXPECT_EQ(explain(report), "forward is the largest part: 28 % of the step of 150 ms, from 22.5 ms on rank 1 to "
                             "60.0 ms on rank 0");
  const std::string text = report_as_text(report);
  EXPECT_THAT(text, Not(HasSubstr("plan")));
  EXPECT_THAT(text, HasSubstr("forward"));
  EXPECT_TRUE(report_as_json(report).at("step").at("predicted_s").is_null());
}

TEST(TraceReport, FewStepsAndNone) {
  const TestFolder run;
  write_run(run, {1, 1});
  const TraceReport report = build_trace_report(read_run_traces(run.path()), std::nullopt);
  EXPECT_EQ(report.steps, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_THAT(report.notices, Contains(HasSubstr("only 2 steps were recorded")));

  const TestFolder empty;
  SyntheticTrace(test_header()).write(empty.path());
  try {
    build_trace_report(read_run_traces(empty.path()), std::nullopt);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("trace: no training step was recorded whole on all ranks"));
  }
}

// A rank was killed in step 4: only the steps that all ranks finished count.
TEST(TraceReport, AStepThatOneRankDidNotFinishIsLeftOut) {
  const TestFolder run;
  write_run(run, {1, 1, 1, 1, 1});
  SyntheticTrace cut(test_header(1, 2));
  for (std::uint32_t step = 0; step < 4; ++step) cut.span("step", step, step * 1000, 900);
  cut.span("forward", 4, 4000, 10, 0);
  cut.write(run.path());
  const TraceReport report = build_trace_report(read_run_traces(run.path()), std::nullopt);
  EXPECT_EQ(report.steps, (std::vector<std::uint32_t>{2, 3}));
}

TEST(TraceReport, TextAndJsonSayTheSame) {
  const TestFolder run;
  write_run(run, {9, 7, 1, 1, 2.5});
  const TraceReport report = build_trace_report(read_run_traces(run.path()), plan());
  const std::string text = report_as_text(report);
  EXPECT_THAT(text, HasSubstr("run test-run: 2 of 2 ranks, 3 steps from 2 to 4 (the first 2 are left out)"));
  EXPECT_THAT(text, HasSubstr("backward              37.5 ms    25.0 ms    15.0 ms    +22.5 ms     25.0 %"));
  EXPECT_THAT(text, HasSubstr("step                   150 ms     100 ms    60.0 ms    +90.0 ms    100.0 %"));
  EXPECT_THAT(text, HasSubstr("layers.0.attention            forward                 0    45.0 ms    8.00 ms    "
                              "+37.0 ms"));
  EXPECT_THAT(text, HasSubstr("between the steps: evaluate, 1 times, 5.00 ms in all"));
  EXPECT_THAT(text, HasSubstr(explain(report) + "."));

  const nlohmann::json document = nlohmann::json::parse(report_as_json(report).dump());
  EXPECT_EQ(document.at("schema_version"), 1);
  EXPECT_EQ(document.at("steps").at("measured"), 3);
  double sum = 0;
  for (const auto& part : document.at("parts")) sum += part.at("mean_s").get<double>();
  EXPECT_NEAR(sum, document.at("step").at("mean_s").get<double>(), 1e-12);
  EXPECT_EQ(document.at("parts").at(1).at("part"), "forward");
  EXPECT_NEAR(document.at("parts").at(1).at("difference_s").get<double>(), 26.25 * millisecond, 1e-9);
  EXPECT_EQ(document.at("ranks").at(1).at("coordinate").at("pp"), 1);
  EXPECT_EQ(document.at("explanation"), explain(report));
}

}  // namespace
}  // namespace paceline
