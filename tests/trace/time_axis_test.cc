#include "paceline/trace/time_axis.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "synthetic_trace.h"

namespace paceline {
namespace {

constexpr std::int64_t second = 1'000'000'000;

TEST(TimeAxis, ConvertsTicksByTheHeader) {
  TraceFile file;
  file.header = test_header();
  file.header.ticks_per_second = 2.5e9;
  file.header.start_ticks = 1'000;
  file.header.start_wall_ns = 70 * second;
  const TimeAxis axis(file);
  EXPECT_EQ(axis.wall_ns(1'000), 70 * second);
  EXPECT_EQ(axis.wall_ns(1'000 + 2'500'000'000), 71 * second);
  EXPECT_EQ(axis.wall_ns(500), 70 * second - 200);
  EXPECT_DOUBLE_EQ(axis.seconds(1'250'000'000), 0.5);
}

// The two milliseconds of the first measurement leave an error; the readings of a long run take it away.
TEST(TimeAxis, RefinesTheRateOverTheWholeFile) {
  TraceFile file;
  file.header = test_header();
  file.header.time_stamp_counter = true;
  file.header.ticks_per_second = 2.5e9 * 1.0002;
  file.header.start_ticks = 0;
  file.header.start_wall_ns = 70 * second;
  file.header.start_monotonic_ns = 0;
  const std::int64_t monotonic = 100 * second;
  file.clocks.push_back({250'000'000'000, static_cast<std::uint64_t>(170 * second), 0,
                         static_cast<std::uint32_t>(monotonic), static_cast<std::int32_t>(monotonic >> 32), 0,
                         RecordKind::clock, TraceLane::host});
  const TimeAxis axis(file);
  EXPECT_DOUBLE_EQ(axis.seconds(250'000'000'000), 100.0);
  EXPECT_EQ(axis.wall_ns(250'000'000'000), 170 * second);
  EXPECT_TRUE(axis.clock_steps().empty());
}

/// 100 steps of a second, the wall clock jumping by `jump_ns` in the middle of step 50.
TraceFile record_with_jump(const TestFolder& folder, std::int64_t jump_ns) {
  FakeClocks clocks;
  {
    Recorder recorder(folder / "rank_0.trace", test_header(), clocks.clock());
    for (std::uint32_t step = 0; step < 100; ++step) {
      recorder.begin_step(step);
      {
        Span span(recorder, step_name);
        clocks.advance(second / 2);
        if (step == 50) clocks.wall_ns += jump_ns;
        clocks.advance(second / 2);
      }
      recorder.flush();
    }
  }
  return read_trace_file(folder / "rank_0.trace");
}

// A suspended machine (+1 h) and a clock set back (-2.5 s): durations stay monotonic, later steps get the new time.
TEST(TimeAxis, ASteppingWallClock) {
  for (const std::int64_t jump : {3600 * second, -(5 * second / 2)}) {
    const TestFolder folder;
    const TraceFile file = record_with_jump(folder, jump);
    const TimeAxis axis(file);
    ASSERT_EQ(file.records.size(), 100u);
    for (std::uint32_t step = 0; step < 100; ++step) {
      const TraceRecord& record = file.records[step];
      EXPECT_EQ(record.step, step);
      EXPECT_DOUBLE_EQ(axis.seconds(record.duration), 1.0);
      const std::int64_t wall = file.header.start_wall_ns + step * second + (step > 50 ? jump : 0);
      EXPECT_LE(std::abs(axis.wall_ns(record.start) - wall), 1'000'000) << step;
      EXPECT_EQ(axis.wall_ns(record.start + record.duration, record.start) - axis.wall_ns(record.start), second);
    }
    ASSERT_EQ(axis.clock_steps().size(), 1u);
    EXPECT_EQ(axis.clock_steps()[0].step, 50u);
    EXPECT_EQ(axis.clock_steps()[0].size_ns, jump);
  }
}

// 50 ppm for an hour is 180 ms: followed, and no jump is reported.
TEST(TimeAxis, ADriftingWallClock) {
  const TestFolder folder;
  FakeClocks clocks;
  {
    Recorder recorder(folder / "rank_0.trace", test_header(), clocks.clock());
    for (std::uint32_t step = 0; step < 360; ++step) {
      recorder.begin_step(step);
      {
        Span span(recorder, step_name);
        clocks.advance(10 * second);
        clocks.wall_ns += 500'000;
      }
      recorder.flush();
    }
  }
  const TraceFile file = read_trace_file(folder / "rank_0.trace");
  const TimeAxis axis(file);
  EXPECT_TRUE(axis.clock_steps().empty());
  const TraceRecord& last = file.records.back();
  EXPECT_EQ(clocks.wall_ns - file.header.start_wall_ns, 3600 * second + 180'000'000);
  EXPECT_LE(std::abs(axis.wall_ns(last.start + last.duration) - clocks.wall_ns), 20'000'000);
  std::int64_t before = 0;
  for (const TraceRecord& record : file.records) {
    EXPECT_GT(axis.wall_ns(record.start), before);
    before = axis.wall_ns(record.start);
  }
}

TEST(TimeAxis, WhateverAFileClaimsNothingOverflows) {
  TraceFile file;
  file.header = test_header();
  file.header.ticks_per_second = 1;
  file.header.start_wall_ns = 4'000'000'000'000'000'000;
  const TimeAxis axis(file);
  EXPECT_EQ(axis.wall_ns(~0ULL), 6'000'000'000'000'000'000);
}

}  // namespace
}  // namespace paceline
