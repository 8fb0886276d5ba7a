#include "paceline/trace/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <thread>

#include "synthetic_trace.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;

TEST(Recorder, WritesSpansInstantsAndScalars) {
  const TestFolder folder;
  FakeClocks clocks;
  NameTable names;
  const NameId forward = names.intern("forward");
  const NameId memory = names.intern("memory_bytes");
  TraceHeader header = test_header();
  header.names = names.names();
  {
    Recorder recorder(folder / "rank_0.trace", header, clocks.clock());
    ASSERT_TRUE(recorder.enabled());
    recorder.begin_step(7);
    {
      Span whole(recorder, step_name);
      clocks.advance(10);
      {
        Span outer(recorder, forward, 3);
        clocks.advance(5);
        Span inner(recorder.lane(TraceLane::compute), forward, 3, 12);
        clocks.advance(20);
      }
      recorder.lane(TraceLane::host).scalar(memory, 0.1);
      recorder.lane(TraceLane::communication).instant(forward, 4);
      clocks.advance(1);
    }
    recorder.flush();
  }
  const TraceFile file = read_trace_file(folder / "rank_0.trace");
  EXPECT_EQ(file.header.start_ticks, 1000u);
  EXPECT_EQ(file.header.start_wall_ns, 1'700'000'000'000'000'000);
  const std::vector<TraceRecord> expected = {
      {1015, 20, 7, 3, 12, forward, RecordKind::span, TraceLane::compute},
      {1010, 25, 7, 3, no_operation, forward, RecordKind::span, TraceLane::compute},
      {1000, 36, 7, no_action, no_operation, step_name, RecordKind::span, TraceLane::compute},
      {1035, 0, 7, 4, no_operation, forward, RecordKind::instant, TraceLane::communication},
      {1035, std::bit_cast<std::uint64_t>(0.1), 7, no_action, no_operation, memory, RecordKind::scalar,
       TraceLane::host},
  };
  EXPECT_EQ(file.records, expected);
  ASSERT_EQ(file.clocks.size(), 1u);
  EXPECT_EQ(file.clocks[0].start, 1036u);
  EXPECT_EQ(file.clocks[0].duration, 1'700'000'000'000'000'036u);
  EXPECT_EQ(file.clocks[0].action + (static_cast<std::uint64_t>(file.clocks[0].operation) << 32), 5'000'000'036u);
}

TEST(Recorder, DisabledRecordsNothing) {
  Recorder recorder;
  EXPECT_FALSE(recorder.enabled());
  recorder.begin_step(1);
  {
    Span span(recorder, step_name);
    recorder.lane(TraceLane::host).instant(step_name);
    recorder.lane(TraceLane::host).scalar(step_name, 1);
  }
  recorder.flush();
}

// More records than a lane's buffer holds between two flushes: none is lost, the order stays.
TEST(Recorder, AFullLaneWritesItself) {
  const TestFolder folder;
  constexpr std::uint32_t count = 30'000;
  {
    Recorder recorder(folder / "rank_0.trace", test_header());
    for (std::uint32_t i = 0; i < count; ++i) Span span(recorder, step_name, i);
  }
  const TraceFile file = read_trace_file(folder / "rank_0.trace");
  ASSERT_EQ(file.records.size(), count);
  for (std::uint32_t i = 0; i < count; ++i) ASSERT_EQ(file.records[i].action, i);
}

TEST(Recorder, LanesOfTwoThreadsAndFlushesAtTheSameTime) {
  const TestFolder folder;
  constexpr std::uint32_t count = 50'000;
  {
    Recorder recorder(folder / "rank_0.trace", test_header());
    std::thread communication([&] {
      for (std::uint32_t i = 0; i < count; ++i) Span span(recorder.lane(TraceLane::communication), step_name, i);
    });
    for (std::uint32_t i = 0; i < count; ++i) {
      { Span span(recorder, step_name, i); }
      if (i % 500 == 0) {
        recorder.begin_step(i / 500);
        recorder.flush();
      }
    }
    communication.join();
  }
  const TraceFile file = read_trace_file(folder / "rank_0.trace");
  std::uint32_t next[3] = {0, 0, 0};
  for (const TraceRecord& record : file.records) ASSERT_EQ(record.action, next[static_cast<int>(record.lane)]++);
  EXPECT_EQ(next[0], count);
  EXPECT_EQ(next[1], count);
  EXPECT_EQ(next[2], 0u);
}

TEST(Recorder, TheEarlierAttemptsFileIsKept) {
  const TestFolder folder;
  for (std::uint32_t attempt = 0; attempt < 3; ++attempt) {
    Recorder recorder(folder / "trace/rank_0.trace", test_header());
    Span span(recorder, step_name, attempt);
  }
  EXPECT_EQ(read_trace_file(folder / "trace/rank_0.1.trace").records.at(0).action, 0u);
  EXPECT_EQ(read_trace_file(folder / "trace/rank_0.2.trace").records.at(0).action, 1u);
  EXPECT_EQ(read_trace_file(folder / "trace/rank_0.trace").records.at(0).action, 2u);
}

TEST(Recorder, AFolderThatCannotBeMadeIsOneWarning) {
  const TestFolder folder;
  write_bytes(folder / "trace", "a file, not a folder");
  std::vector<std::string> warnings;
  Recorder recorder(folder / "trace/rank_0.trace", test_header(), TraceClock::system(),
                    [&](const std::string& line) { warnings.push_back(line); });
  EXPECT_FALSE(recorder.enabled());
  { Span span(recorder, step_name); }
  recorder.flush();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("tracing stops, the run goes on"));
  EXPECT_THAT(warnings[0], HasSubstr("rank_0.trace"));
}

// A limit on the size of files stands for the full disk: a write is cut short, then refused.
TEST(Recorder, AFullDiskStopsTheTracingOnly) {
  const TestFolder folder;
  std::vector<std::string> warnings;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  {
    Recorder recorder(folder / "rank_0.trace", test_header(), TraceClock::system(),
                      [&](const std::string& line) { warnings.push_back(line); });
    rlimit small = before;
    small.rlim_cur = 10'000;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (std::uint32_t step = 0; step < 100; ++step) {
      recorder.begin_step(step);
      for (std::uint32_t i = 0; i < 10; ++i) Span span(recorder, step_name, i);
      recorder.flush();
    }
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    EXPECT_FALSE(recorder.enabled());
  }
  signal(SIGXFSZ, old_handler);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("File too large"));
  // Whole blocks only: 10 spans and a clock reading each.
  const TraceFile file = read_trace_file(folder / "rank_0.trace");
  EXPECT_TRUE(file.notices.empty());
  const std::size_t header_size = write_header(file.header).size();
  EXPECT_EQ(file.records.size(), (10'000 - header_size) / (16 + 11 * 32) * 10);
  EXPECT_LE(std::filesystem::file_size(folder / "rank_0.trace"), 10'000u);
}

TEST(Recorder, AKilledProcessLeavesItsFinishedSteps) {
  const TestFolder folder;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Recorder recorder(folder / "rank_0.trace", test_header());
    for (std::uint32_t step = 0; step < 3; ++step) {
      recorder.begin_step(step);
      { Span span(recorder, step_name); }
      if (step < 2) recorder.flush();
    }
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const TraceFile file = read_trace_file(folder / "rank_0.trace");
  ASSERT_EQ(file.records.size(), 2u);
  EXPECT_EQ(file.records[1].step, 1u);
}

TEST(TraceClock, SystemTicksFollowTheMonotonicClock) {
  const TraceClock clock = TraceClock::system();
  const std::int64_t begin_ns = clock.monotonic_ns();
  const std::uint64_t begin = clock.ticks();
  while (clock.monotonic_ns() - begin_ns < 20'000'000) {
  }
  const std::uint64_t end = clock.ticks();
  const std::int64_t end_ns = clock.monotonic_ns();
  const double by_ticks = static_cast<double>(end - begin) / clock.ticks_per_second;
  EXPECT_NEAR(by_ticks, static_cast<double>(end_ns - begin_ns) * 1e-9, 0.002);
}

}  // namespace
}  // namespace paceline
