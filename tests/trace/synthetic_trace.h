#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "paceline/trace/recorder.h"

namespace paceline {

/// A folder of the test's own, gone at its end.
class TestFolder {
 public:
  TestFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("paceline_trace_test_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Clocks that the test moves by hand; a tick is a nanosecond.
struct FakeClocks {
  std::uint64_t ticks = 1'000;
  std::int64_t wall_ns = 1'700'000'000'000'000'000;
  std::int64_t monotonic_ns = 5'000'000'000;

  void advance(std::int64_t nanoseconds) {
    ticks += static_cast<std::uint64_t>(nanoseconds);
    wall_ns += nanoseconds;
    monotonic_ns += nanoseconds;
  }
  TraceClock clock() {
    TraceClock clock;
    clock.tick_source = [this] { return ticks; };
    clock.wall_ns = [this] { return wall_ns; };
    clock.monotonic_ns = [this] { return monotonic_ns; };
    return clock;
  }
};

inline TraceHeader test_header(int rank = 0, int world_size = 1) {
  TraceHeader header;
  header.program_version = "0.1.0";
  header.run_id = "test-run";
  header.trace_id = *TraceId::parse("0af7651916cd43dd8448eb211c80319c");
  header.root_span_id = *SpanId::parse("b7ad6b7169203331");
  header.rank = rank;
  header.world_size = world_size;
  return header;
}

/// One rank's trace written record by record: a span's times are nanoseconds after `origin_wall_ns`.
class SyntheticTrace {
 public:
  explicit SyntheticTrace(TraceHeader header, std::int64_t origin_wall_ns = 1'700'000'000'000'000'000)
      : header_(std::move(header)) {
    header_.start_ticks = 1'000'000;
    header_.start_wall_ns = origin_wall_ns;
    header_.start_monotonic_ns = 77;
    for (const std::string& name : header_.names) names_.intern(name);
  }

  void span(const std::string& name, std::uint32_t step, std::uint64_t start_ns, std::uint64_t duration_ns,
            std::uint32_t action = no_action, std::int32_t operation = no_operation,
            TraceLane lane = TraceLane::compute) {
    records_.push_back({1'000'000 + start_ns, duration_ns, step, action, operation, names_.intern(name),
                        RecordKind::span, lane});
  }

  void write(const std::filesystem::path& run) {
    header_.names = names_.names();
    std::string bytes = write_header(header_);
    if (!records_.empty()) append_block(bytes, records_.data(), records_.size());
    write_bytes(run / "trace" / trace_file_name(header_.rank), bytes);
  }

 private:
  TraceHeader header_;
  NameTable names_;
  std::vector<TraceRecord> records_;
};

}  // namespace paceline
