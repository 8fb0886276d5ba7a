/// What recording costs: a span (both ends) of an open and of a disabled recorder, an instant, and the flush of a step.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <filesystem>

#include "paceline/trace/recorder.h"

namespace paceline {
namespace {

constexpr int spans_per_step = 2000;

/// A folder that is gone at the end.
struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("paceline_trace_bench_" + std::to_string(::getpid()));
  ~Folder() { std::filesystem::remove_all(path); }
};

/// One training step: nested spans, written to the file at its end. The figure is the time a span takes.
void record_steps(benchmark::State& state, Recorder& recorder) {
  RecorderLane& lane = recorder.lane(TraceLane::compute);
  std::uint32_t step = 0;
  for (auto _ : state) {
    recorder.begin_step(step++);
    for (int i = 0; i < spans_per_step / 2; ++i) {
      Span outer(lane, step_name, static_cast<std::uint32_t>(i));
      Span inner(lane, step_name, static_cast<std::uint32_t>(i), i);
      benchmark::ClobberMemory();
    }
    if (state.range(0) == 0) state.PauseTiming();
    recorder.flush();
    if (state.range(0) == 0) state.ResumeTiming();
  }
  state.counters["span"] = benchmark::Counter(static_cast<double>(state.iterations()) * spans_per_step,
                                              benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_Span(benchmark::State& state) {
  const Folder folder;
  Recorder recorder(folder.path / trace_file_name(0), TraceHeader{});
  if (!recorder.enabled()) return state.SkipWithError("the recorder could not open its file");
  record_steps(state, recorder);
}
BENCHMARK(BM_Span)->ArgName("with_flush")->Arg(0)->Arg(1)->Iterations(2000);

void BM_SpanOfDisabledRecorder(benchmark::State& state) {
  Recorder recorder;
  record_steps(state, recorder);
}
BENCHMARK(BM_SpanOfDisabledRecorder)->ArgName("with_flush")->Arg(1)->Iterations(2000);

void BM_ReadTicks(benchmark::State& state) {
  const TraceClock clock = TraceClock::system();
  for (auto _ : state) benchmark::DoNotOptimize(clock.ticks());
}
BENCHMARK(BM_ReadTicks);

}  // namespace
}  // namespace paceline

BENCHMARK_MAIN();
