#include "paceline/trace/explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double millisecond = 1e-3;

/// (kind, measured ms, predicted ms)
struct KindTimes {
  const char* kind;
  double measured;
  double predicted;
};

RankReport rank_report(int rank, std::map<std::string, int> coordinate, const std::vector<KindTimes>& kinds) {
  RankReport report;
  report.rank = rank;
  report.coordinate = std::move(coordinate);
  for (auto& part : report.parts) part.predicted = 0;
  report.step.predicted = 0;
  for (const KindTimes& times : kinds) {
    const Timing timing{times.measured * millisecond, times.measured * millisecond, times.predicted * millisecond};
    const bool idle = std::string_view(times.kind).empty();
    if (!idle) report.kinds[times.kind] = timing;
    Timing& part = report.parts[static_cast<std::size_t>(idle ? StepPart::idle : step_part_of(times.kind))];
    for (Timing* sum : {&part, &report.step}) {
      sum->mean += timing.mean;
      sum->median += timing.median;
      *sum->predicted += *timing.predicted;
    }
  }
  return report;
}

TraceReport run_report(std::vector<RankReport> ranks) {
  TraceReport report;
  report.planned = true;
  report.step = ranks.front().step;
  for (std::size_t p = 0; p < report.parts.size(); ++p) {
    report.parts[p] = ranks.front().parts[p];
  }
  report.ranks = std::move(ranks);
  return report;
}

OperationReport operation(int rank, const char* kind, const char* name, double measured_ms, double predicted_ms) {
  OperationReport operation;
  operation.rank = rank;
  operation.action_kind = kind;
  operation.name = name;
  operation.executions = 2;
  operation.mean = measured_ms * millisecond / 2;
  operation.predicted = predicted_ms * millisecond / 2;
  return operation;
}

TEST(Explanation, AWaitIsFollowedToTheStageThatIsSlow) {
  std::vector<RankReport> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    const int stage = rank / 2;
    const std::vector<KindTimes> first = {{"forward", 54, 30}, {"backward", 46, 42}};
    const std::vector<KindTimes> second = {{"receive_activation", 41, 13}, {"forward", 30, 30}, {"backward", 29, 29}};
    ranks.push_back(rank_report(rank, {{"pp", stage}, {"tp", rank % 2}}, stage == 0 ? first : second));
  }
  TraceReport report = run_report(std::move(ranks));
  for (const int rank : {0, 1}) {
    for (const char* name : {"layers.0.attention", "layers.1.attention"}) {
      report.operations.push_back(operation(rank, "forward", name, 20, 10));
    }
    report.operations.push_back(operation(rank, "forward", "layers.0.mlp", 14, 10));
    report.operations.push_back(operation(rank, "backward", "layers.0.mlp", 50, 10));
  }
  EXPECT_EQ(explain(report),
            "receive_activation on ranks 2-3 takes 41 % of the step (41.0 ms), 3.2 x the plan: stage 1 waits for "
            "stage 0, whose forward is 1.8 x slower than predicted, most of it in attention (20.0 ms of 24.0 ms)");
}

TEST(Explanation, AWaitThatNoStageExplainsNamesNone) {
  const TraceReport report = run_report({
      rank_report(0, {{"pp", 0}}, {{"forward", 60, 60}, {"receive_gradient", 40, 10}}),
      rank_report(1, {{"pp", 1}}, {{"forward", 70, 60}, {"backward", 30, 28}}),
  });
  // The last stage's forward is 10 ms late: that is a third of the wait, so it is named.
  EXPECT_THAT(explain(report), HasSubstr("receive_gradient on rank 0 takes 40 % of the step (40.0 ms), 4.0 x the plan: "
                                         "stage 0 waits for stage 1, whose forward is 1.2 x slower than predicted"));
  const TraceReport unexplained = run_report({
      rank_report(0, {{"pp", 0}}, {{"forward", 60, 60}, {"receive_gradient", 40, 10}}),
      rank_report(1, {{"pp", 1}}, {{"forward", 61, 60}, {"backward", 30, 30}, {"", 9, 0}}),
  });
  EXPECT_THAT(explain(unexplained), HasSubstr("stage 0 waits, though no stage after it computes much slower"));
}

TEST(Explanation, InACollectiveTheLastToArriveIsNamed) {
  const TraceReport report = run_report({
      rank_report(0, {}, {{"forward", 60, 60}, {"wait_buckets", 40, 10}}),
      rank_report(1, {}, {{"forward", 97, 60}, {"wait_buckets", 3, 10}}),
      rank_report(2, {}, {{"forward", 55, 60}, {"wait_buckets", 45, 10}}),
      rank_report(3, {}, {{"forward", 57, 60}, {"wait_buckets", 43, 10}}),
  });
  EXPECT_EQ(explain(report), "wait_buckets on ranks 0, 2-3 takes 43 % of the step (42.7 ms), 4.3 x the plan: rank 1 "
                             "arrives last, it waits 3.00 ms there and rank 2 45.0 ms");
  // All wait alike: the collective itself is slow, no rank is to blame.
  const TraceReport alike = run_report({
      rank_report(0, {}, {{"forward", 60, 60}, {"wait_buckets", 40, 10}}),
      rank_report(1, {}, {{"forward", 62, 60}, {"wait_buckets", 38, 10}}),
  });
  EXPECT_EQ(explain(alike), "wait_buckets on ranks 0-1 takes 39 % of the step (39.0 ms), 3.9 x the plan");
}

TEST(Explanation, IdleTimeAndFasterThanPlanned) {
  EXPECT_EQ(explain(run_report({rank_report(0, {}, {{"forward", 60, 60}, {"", 40, 5}})})),
            "40 % of the step (40.0 ms) lies in no recorded span, the plan leaves 5.00 ms idle");
  EXPECT_EQ(explain(run_report({rank_report(0, {}, {{"forward", 60, 60}, {"optimizer_step", 40, 80}})})),
            "optimizer_step on rank 0 takes 40 % of the step (40.0 ms), 0.50 x the plan");
  EXPECT_EQ(explain(run_report({rank_report(0, {}, {{"forward", 60, 60}, {"load", 40, 0}})})),
            "load on rank 0 takes 40 % of the step (40.0 ms), the plan has none");
  EXPECT_EQ(explain(run_report({rank_report(0, {}, {{"forward", 60, 60}, {"load", 40, 1}})})),
            "load on rank 0 takes 40 % of the step (40.0 ms), against 1.00 ms in the plan");
}

TEST(Explanation, AStepThatKeepsToThePlanHasNoCulprit) {
  const std::string text =
      explain(run_report({rank_report(0, {}, {{"forward", 61, 60}, {"backward", 121, 120}, {"load", 1, 1}})}));
  EXPECT_EQ(text, "the step takes 183 ms, 1.01 x the plan, and no part differs by more than 3 % of the step");
}

TEST(FormatSeconds, ThreeDigitsAndAUnit) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(-0.0123), "-12.3 ms");
  EXPECT_EQ(format_seconds(1.5), "1.50 s");
  EXPECT_EQ(format_seconds(4.5e-5), "45.0 us");
  EXPECT_EQ(format_seconds(0.15), "150 ms");
  EXPECT_EQ(format_seconds(0.00099999), "1.00 ms");
  EXPECT_EQ(format_seconds(0.0099999), "10.0 ms");
  EXPECT_EQ(format_seconds(0.99999), "1.00 s");
}

}  // namespace
}  // namespace paceline
