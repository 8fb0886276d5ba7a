#include "paceline/trace/chrome_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "paceline/base/error.h"
#include "synthetic_trace.h"

namespace paceline {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json exported(const std::filesystem::path& run, const std::optional<PlanPrediction>& plan = std::nullopt) {
  export_chrome(read_run_traces(run), plan, run / "chrome.json");
  return json::parse(read_bytes(run / "chrome.json"));
}

std::vector<json> events_of(const json& document, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : document.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

std::int64_t nanoseconds(const json& microseconds) { return std::llround(microseconds.get<double>() * 1000); }

TEST(ChromeExport, TwoRanksOnOneTimeAxis) {
  const TestFolder run;
  SyntheticTrace first(test_header(0, 2), 1'700'000'000'000'000'000);
  first.span("forward", 0, 5'000'250, 1'500, 2, no_operation);
  first.write(run.path());
  // Started 3 ms later by its own clock.
  SyntheticTrace second(test_header(1, 2), 1'700'000'000'003'000'000);
  second.span("backward", 0, 2'000'250, 1'750, 4, no_operation, TraceLane::communication);
  second.write(run.path());

  const json document = exported(run.path());
  EXPECT_EQ(document.at("displayTimeUnit"), "ms");
  EXPECT_EQ(document.at("otherData").at("start_unix_ns"), "1700000000005000250");
  EXPECT_EQ(document.at("otherData").at("trace_id"), "0af7651916cd43dd8448eb211c80319c");
  const auto spans = events_of(document, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "forward");
  EXPECT_EQ(spans[0].at("pid"), 0);
  EXPECT_EQ(spans[0].at("tid"), 0);
  EXPECT_EQ(spans[0].at("ts"), 0.0);
  EXPECT_EQ(spans[0].at("dur"), 1.5);
  EXPECT_EQ(spans[1].at("pid"), 1);
  EXPECT_EQ(spans[1].at("tid"), 1);
  EXPECT_EQ(spans[1].at("cat"), "communication");
  EXPECT_EQ(spans[1].at("ts"), 0.0);
  EXPECT_EQ(spans[1].at("dur"), 1.75);
}

TEST(ChromeExport, NamesProcessesAndThreads) {
  const TestFolder run;
  TraceHeader header = test_header(3, 4);
  header.coordinate = {{"dp", 1}, {"pp", 0}, {"tp", 1}};
  SyntheticTrace(header).write(run.path());
  std::map<std::string, std::vector<json>> metadata;
  for (const json& event : events_of(exported(run.path()), "M")) metadata[event.at("name")].push_back(event);
  ASSERT_EQ(metadata["process_name"].size(), 1u);
  EXPECT_EQ(metadata["process_name"][0].at("args").at("name"), "rank 3 (dp=1, pp=0, tp=1)");
  EXPECT_EQ(metadata["process_name"][0].at("pid"), 3);
  ASSERT_EQ(metadata["thread_name"].size(), 3u);
  EXPECT_EQ(metadata["thread_name"][0].at("args").at("name"), "compute");
  EXPECT_EQ(metadata["thread_name"][1].at("args").at("name"), "communication");
  EXPECT_EQ(metadata["thread_name"][2].at("args").at("name"), "host");
}

// Real clocks, several lanes: every recorded span is there, and on each lane they nest as they ran.
TEST(ChromeExport, EverySpanComesBackNested) {
  const TestFolder run;
  NameTable names;
  const NameId forward = names.intern("forward");
  const NameId attention = names.intern("attention");
  const NameId send = names.intern("send_activation");
  const NameId loss = names.intern("loss");
  constexpr int world = 2;
  constexpr std::uint32_t steps = 20;
  constexpr int operations = 25;
  for (int rank = 0; rank < world; ++rank) {
    TraceHeader header = test_header(rank, world);
    header.names = names.names();
    Recorder recorder(run.path() / "trace" / trace_file_name(rank), header);
    for (std::uint32_t step = 0; step < steps; ++step) {
      recorder.begin_step(step);
      std::thread communication([&] {
        Span outer(recorder.lane(TraceLane::communication), send, 1);
        Span inner(recorder.lane(TraceLane::communication), send, 2);
      });
      {
        Span whole(recorder, step_name);
        Span action(recorder, forward, 0);
        for (int k = 0; k < operations; ++k) Span operation(recorder, attention, 0, k);
        recorder.lane(TraceLane::compute).instant(forward, 0);
        recorder.lane(TraceLane::host).scalar(loss, 0.1 * step);
      }
      communication.join();
      recorder.flush();
    }
  }
  const json document = exported(run.path());
  EXPECT_EQ(events_of(document, "i").size(), world * steps);
  const auto scalars = events_of(document, "C");
  ASSERT_EQ(scalars.size(), world * steps);
  EXPECT_EQ(scalars[7].at("args").at("loss"), 0.1 * 7);

  std::map<std::pair<int, int>, std::vector<json>> lanes;
  for (const json& span : events_of(document, "X")) lanes[{span.at("pid"), span.at("tid")}].push_back(span);
  ASSERT_EQ(lanes.size(), 4u);
  for (const auto& [lane, spans] : lanes) {
    EXPECT_EQ(spans.size(), lane.second == 0 ? steps * (2 + operations) : steps * 2);
    std::vector<std::pair<std::int64_t, std::string>> open;  // end, name
    std::multiset<std::pair<int, int>> seen;                 // step, operation
    std::int64_t last_start = 0;
    for (const json& span : spans) {
      const std::int64_t start = nanoseconds(span.at("ts"));
      const std::int64_t end = start + nanoseconds(span.at("dur"));
      EXPECT_GE(start, last_start);
      last_start = start;
      const std::string name = span.at("name");
      // A parent may end in the very tick in which its next sibling begins.
      while (!open.empty() && open.back().first <= start && !(open.back().first == start && end == start)) {
        open.pop_back();
      }
      if (!open.empty()) {
        EXPECT_LE(end, open.back().first);
      }
      if (name == "forward") {
        ASSERT_FALSE(open.empty());
        EXPECT_EQ(open.back().second, "step");
      }
      if (name == "attention") {
        ASSERT_FALSE(open.empty());
        seen.emplace(span.at("args").at("step").get<int>(), span.at("args").at("operation").get<int>());
      }
      open.push_back({end, name});
    }
    if (lane.second == 0) {
      EXPECT_EQ(seen.size(), steps * operations);
      EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), steps * operations);
    }
  }
}

// Two reductions in flight at once: neither holds the other, so they are drawn on two threads of their lane.
TEST(ChromeExport, OverlappingSpansGetThreadsOfTheirOwn) {
  const TestFolder run;
  SyntheticTrace trace(test_header());
  const auto reduce = [&](std::uint64_t start, std::uint64_t duration) {
    trace.span("reduce_bucket", 0, start, duration, 1, no_operation, TraceLane::communication);
  };
  reduce(100, 50);
  reduce(120, 80);  // overlaps the first
  reduce(130, 10);  // inside the first
  reduce(160, 60);  // after the first, overlaps the second
  trace.write(run.path());
  const json document = exported(run.path());
  std::vector<int> threads;
  for (const json& span : events_of(document, "X")) threads.push_back(span.at("tid"));
  EXPECT_EQ(threads, (std::vector<int>{1, 4, 1, 1}));
  std::map<int, std::string> names;
  for (const json& event : events_of(document, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names, (std::map<int, std::string>{
                       {0, "compute"}, {1, "communication"}, {2, "host"}, {4, "communication 2"}}));
}

TEST(ChromeExport, LabelsAndPredictions) {
  const TestFolder run;
  TraceHeader header = test_header();
  header.actions = {"load", "forward m0 c0"};
  header.operations = {"layers.0.attention"};
  SyntheticTrace trace(header);
  trace.span("step", 5, 0, 1000);
  trace.span("forward", 5, 100, 500, 1);
  trace.span("attention", 5, 200, 100, 1, 0);
  trace.span("attention", 5, 350, 100, 1, 7);  // beyond the labels
  trace.span("forward", 5, 2000, 500, 1);      // outside the step: an evaluation, another schedule
  trace.write(run.path());
  PlanPrediction plan;
  plan.step_time_s = 1e-6;
  plan.parts = {{0, 1, "forward", 0, 450e-9}};
  plan.operations = {{0, "forward", 0, "layers.0.attention", 80e-9}};
  plan.index();
  const auto spans = events_of(exported(run.path(), plan), "X");
  ASSERT_EQ(spans.size(), 5u);
  EXPECT_EQ(spans[0].at("args"), json({{"step", 5}}));
  EXPECT_EQ(spans[1].at("args"), json({{"step", 5}, {"action", "forward m0 c0"}, {"predicted_us", 0.45}}));
  EXPECT_EQ(spans[2].at("args"), json({{"step", 5},
                                       {"action", "forward m0 c0"},
                                       {"operation", "layers.0.attention"},
                                       {"predicted_us", 0.08}}));
  EXPECT_EQ(spans[3].at("args"), json({{"step", 5}, {"action", "forward m0 c0"}, {"operation", 7}}));
  EXPECT_EQ(spans[4].at("args"), json({{"step", 5}, {"action", "forward m0 c0"}}));
}

TEST(ChromeExport, NamesThatBreakJson) {
  const TestFolder run;
  const std::vector<std::string> hard = {"{\"device\": \"cpu\"}(12): run", "C:\\tmp\\new", "\x01",
                                         "\x7f", "\u2028", std::string(4000, 'n'), "", "</script>"};
  SyntheticTrace trace(test_header());
  std::uint64_t start = 0;
  for (const std::string& name : hard) trace.span(name, 0, start += 10, 5);
  trace.span("\xed\xa0\x80", 0, start + 10, 5);
  trace.write(run.path());
  const auto spans = events_of(exported(run.path()), "X");
  ASSERT_EQ(spans.size(), hard.size() + 1);
  for (std::size_t i = 0; i < hard.size(); ++i) EXPECT_EQ(spans[i].at("name"), hard[i]);
  EXPECT_EQ(spans.back().at("name"), "\ufffd\ufffd\ufffd");
}

TEST(ChromeExport, ValuesThatJsonCannotHoldAreLeftOutAndCounted) {
  const TestFolder run;
  FakeClocks clocks;
  {
    Recorder recorder(run / "trace/rank_0.trace", test_header(), clocks.clock());
    for (const double value : {1.5, std::numeric_limits<double>::infinity(), std::nan(""), 1e300}) {
      recorder.lane(TraceLane::host).scalar(step_name, value);
    }
  }
  const ExportSummary summary = export_chrome(read_run_traces(run.path()), std::nullopt, run / "chrome.json");
  EXPECT_EQ(summary.scalars, 2u);
  EXPECT_EQ(summary.not_finite, 2u);
  const auto scalars = events_of(json::parse(read_bytes(run / "chrome.json")), "C");
  ASSERT_EQ(scalars.size(), 2u);
  EXPECT_EQ(scalars[0].at("args").at("step"), 1.5);
  EXPECT_EQ(scalars[1].at("args").at("step"), 1e300);
}

TEST(ChromeExport, AClockStepIsAnEvent) {
  const TestFolder run;
  FakeClocks clocks;
  {
    Recorder recorder(run / "trace/rank_0.trace", test_header(), clocks.clock());
    for (std::uint32_t step = 0; step < 3; ++step) {
      recorder.begin_step(step);
      {
        Span span(recorder, step_name);
        clocks.advance(1'000'000);
        if (step == 1) clocks.wall_ns -= 2'500'000'000;
      }
      recorder.flush();
    }
  }
  const json document = exported(run.path());
  const auto instants = events_of(document, "i");
  ASSERT_EQ(instants.size(), 1u);
  EXPECT_EQ(instants[0].at("name"), "clock step");
  EXPECT_EQ(instants[0].at("args").at("step"), 1);
  EXPECT_DOUBLE_EQ(instants[0].at("args").at("size_s").get<double>(), -2.5);
  for (const json& span : events_of(document, "X")) EXPECT_EQ(span.at("dur"), 1000.0);
}

TEST(ChromeExport, EarlierAttemptsAreOnTheAxisToo) {
  const TestFolder run;
  SyntheticTrace before(test_header(), 1'000'000'000);
  before.span("step", 0, 0, 10);
  before.write(run.path());
  std::filesystem::rename(run / "trace/rank_0.trace", run / "trace/rank_0.1.trace");
  SyntheticTrace after(test_header(), 3'000'000'000);
  after.span("step", 1, 0, 10);
  after.write(run.path());
  const json document = exported(run.path());
  const auto spans = events_of(document, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("ts"), 0.0);
  EXPECT_EQ(spans[1].at("ts"), 2e6);
  EXPECT_EQ(events_of(document, "M").size(), 8u);  // one process, described once
}

TEST(ChromeExport, NothingHalfWritten) {
  const TestFolder run;
  SyntheticTrace(test_header()).write(run.path());
  const RunTraces traces = read_run_traces(run.path());
  try {
    export_chrome(traces, std::nullopt, run / "no such folder/chrome.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no such folder/chrome.json: cannot be written: No such file or directory"));
  }
  // The target is a folder: the file beside it goes again.
  std::filesystem::create_directory(run / "chrome.json");
  EXPECT_THROW(export_chrome(traces, std::nullopt, run / "chrome.json"), Error);
  EXPECT_FALSE(std::filesystem::exists(run / "chrome.json.partial"));
}

}  // namespace
}  // namespace paceline
