#include "paceline/trace/run_traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/base/error.h"
#include "synthetic_trace.h"

namespace paceline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::filesystem::path& run) {
  try {
    read_run_traces(run);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TraceHeader attempt_header(int rank, int world_size, const char* root_span) {
  TraceHeader header = test_header(rank, world_size);
  header.root_span_id = *SpanId::parse(root_span);
  return header;
}

TEST(RunTraces, RanksInOrder) {
  const TestFolder run;
  for (const int rank : {10, 2, 0, 1}) SyntheticTrace(test_header(rank, 11)).write(run.path());
  const RunTraces traces = read_run_traces(run.path());
  std::vector<int> ranks;
  for (const TraceFile& file : traces.ranks) ranks.push_back(file.header.rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 10));
  EXPECT_THAT(traces.notices, ElementsAre("no trace of ranks 3-9 in the newest attempt of 11 ranks"));
}

TEST(RunTraces, ClearErrors) {
  const TestFolder run;
  EXPECT_THAT(error_of(run / "absent"), HasSubstr("absent: no such run folder"));
  EXPECT_THAT(error_of(run.path()), HasSubstr("the run has no trace folder"));
  write_bytes(run / "trace/notes.txt", "x");
  EXPECT_THAT(error_of(run.path()), HasSubstr("holds no rank_<r>.trace"));
  write_bytes(run / "trace/rank_0.trace", "");
  EXPECT_THAT(error_of(run.path()), HasSubstr("rank_0.trace: empty"));
  write_bytes(run / "trace/rank_0.trace", "PK\x03\x04 whatever");
  EXPECT_THAT(error_of(run.path()), HasSubstr("rank_0.trace: not a trace file"));
  std::filesystem::remove(run / "trace/rank_0.trace");
  SyntheticTrace(test_header(0, 2)).write(run.path());
  std::filesystem::copy_file(run / "trace/rank_0.trace", run / "trace/rank_1.trace");
  EXPECT_THAT(error_of(run.path()), HasSubstr("says that it is of rank 0, and so does"));
}

// Four ranks, then resumed with two: the files that ranks 2 and 3 left belong to the earlier attempt.
TEST(RunTraces, AResumeWithFewerRanks) {
  const TestFolder run;
  for (int rank = 0; rank < 4; ++rank) {
    SyntheticTrace(attempt_header(rank, 4, "1111111111111111"), 1'000).write(run.path());
  }
  for (int rank = 0; rank < 2; ++rank) {
    const std::string file = "trace/rank_" + std::to_string(rank);
    std::filesystem::rename(run / (file + ".trace"), run / (file + ".1.trace"));
    SyntheticTrace(attempt_header(rank, 2, "2222222222222222"), 2'000).write(run.path());
  }
  const RunTraces traces = read_run_traces(run.path());
  EXPECT_EQ(traces.ranks.size(), 2u);
  ASSERT_EQ(traces.earlier.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(traces.earlier[rank].header.rank, rank);
  EXPECT_TRUE(traces.notices.empty());
}

TEST(RunTraces, ADamagedEarlierAttemptIsLeftOutWithANotice) {
  const TestFolder run;
  SyntheticTrace(test_header()).write(run.path());
  write_bytes(run / "trace/rank_0.1.trace", "");
  const RunTraces traces = read_run_traces(run.path());
  EXPECT_EQ(traces.ranks.size(), 1u);
  EXPECT_TRUE(traces.earlier.empty());
  ASSERT_EQ(traces.notices.size(), 1u);
  EXPECT_THAT(traces.notices[0], HasSubstr("rank_0.1.trace: empty"));
}

TEST(FormatRanks, InShort) {
  EXPECT_EQ(format_ranks({0}), "0");
  EXPECT_EQ(format_ranks({1, 2, 3, 5}), "1-3, 5");
  EXPECT_EQ(format_ranks({0, 2, 3}), "0, 2-3");
}

}  // namespace
}  // namespace paceline
