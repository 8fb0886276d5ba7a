#include "paceline/trace/chrome_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/trace/recorded_steps.h"
#include "paceline/trace/time_axis.h"

namespace paceline {
namespace {

using nlohmann::json;

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

/// A JSON file that appears under its name only when it is complete.
class FileBeside {
 public:
  explicit FileBeside(const std::filesystem::path& path)
      : path_(path), beside_(path.string() + ".partial"), file_(std::fopen(beside_.c_str(), "wb"), &std::fclose) {
    if (!file_) give_up();
  }
  ~FileBeside() {
    if (file_) std::remove(beside_.c_str());
  }

  void write(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) give_up();
  }

  void finish() {
    if (std::fflush(file_.get()) != 0 || ::fsync(fileno(file_.get())) != 0) give_up();
    if (std::rename(beside_.c_str(), path_.c_str()) != 0) give_up();
    file_.reset();
  }

 private:
  [[noreturn]] void give_up() {
    const int error = errno;
    fail("{}: cannot be written: {}", path_.string(), std::strerror(error));
  }

  std::filesystem::path path_;
  std::string beside_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

/// Nanoseconds as microseconds with three decimals, exact.
std::string microseconds(std::int64_t nanoseconds) {
  const std::uint64_t size = nanoseconds < 0 ? -static_cast<std::uint64_t>(nanoseconds) : nanoseconds;
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", size / 1000, size % 1000);
}

/// The predicted duration of each record in microseconds, NaN where the plan has none.
std::vector<double> predictions(const TraceFile& file, const PlanPrediction& plan) {
  std::vector<double> predicted_us(file.records.size(), std::numeric_limits<double>::quiet_NaN());
  const int rank = file.header.rank;
  for (const RecordedStep& step : find_steps(file)) {
    for (const TraceRecord* span : step.spans) {
      double& place = predicted_us[static_cast<std::size_t>(span - file.records.data())];
      const auto kind = step.action_kinds.find(span->action);
      if (kind == step.action_kinds.end()) continue;
      const std::string& kind_name = file.header.names[kind->second];
      if (span->operation == no_operation) {
        const PlannedPart* part = plan.find_part(rank, span->action);
        if (part != nullptr && part->kind == kind_name) place = part->duration_s * 1e6;
      } else if (const auto* operation = plan.find_operation(rank, kind_name, span->operation)) {
        place = operation->duration_s * 1e6;
      }
    }
  }
  return predicted_us;
}

/// The viewers draw a thread's spans as a tree, so spans that overlap without one holding the other (two reductions in
/// flight) need threads of their own: the first of a lane's tracks on which a span fits. Spans come in exported order.
class LaneTracks {
 public:
  std::size_t place(std::int64_t start_ns, std::int64_t end_ns) {
    for (std::size_t track = 0;; ++track) {
      if (track == open_ends_.size()) open_ends_.emplace_back();
      std::vector<std::int64_t>& ends = open_ends_[track];
      while (!ends.empty() && ends.back() <= start_ns) ends.pop_back();
      if (!ends.empty() && end_ns > ends.back()) continue;
      ends.push_back(end_ns);
      return track;
    }
  }

 private:
  std::vector<std::vector<std::int64_t>> open_ends_;  // of each track, the ends of its open spans, innermost last
};

std::string rank_title(const TraceHeader& header) {
  std::string coordinate;
  for (const auto& [axis, index] : header.coordinate) {
    coordinate += fmt::format("{}{}={}", coordinate.empty() ? "" : ", ", axis, index);
  }
  return fmt::format("rank {}{}", header.rank, coordinate.empty() ? "" : " (" + coordinate + ")");
}

/// Writes the events of one run after another.
class ChromeWriter {
 public:
  ChromeWriter(FileBeside& out, std::int64_t start_ns) : out_(out), start_ns_(start_ns) {}

  void write_metadata(const TraceHeader& header) {
    metadata("process_name", header.rank, 0, "\"name\":" + quoted(rank_title(header)));
    metadata("process_sort_index", header.rank, 0, fmt::format("\"sort_index\":{}", header.rank));
    for (std::size_t lane = 0; lane < lane_names.size(); ++lane) name_thread(header.rank, lane, 0);
  }

  void write_events(const TraceFile& file, const PlanPrediction* plan) {
    const TimeAxis axis(file);
    const TraceHeader& header = file.header;
    const std::vector<double> predicted_us = plan != nullptr ? predictions(file, *plan) : std::vector<double>();
    std::vector<std::string> names;
    for (const std::string& name : header.names) names.push_back(quoted(name));

    // Parents before their children: earlier start, then longer, then recorded later (a child ends first).
    const auto length = [](const TraceRecord& record) {
      return record.kind == RecordKind::span ? record.duration : 0;
    };
    std::vector<std::size_t> order(file.records.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const TraceRecord& x = file.records[a];
      const TraceRecord& y = file.records[b];
      if (x.start != y.start) return x.start < y.start;
      if (length(x) != length(y)) return length(x) > length(y);
      if (x.kind != y.kind) return x.kind < y.kind;
      return x.kind == RecordKind::span ? a > b : a < b;
    });

    std::array<LaneTracks, lane_names.size()> tracks;
    for (const std::size_t i : order) {
      const TraceRecord& record = file.records[i];
      const std::int64_t begin_ns = axis.wall_ns(record.start);
      const auto lane = static_cast<std::size_t>(record.lane);
      std::int64_t end_ns = begin_ns;
      std::size_t track = 0;
      if (record.kind == RecordKind::span) {
        // Both ends by the same clock reading and rounding, so that a child never ends after its parent.
        end_ns = axis.wall_ns(record.start + record.duration, record.start);
        track = tracks[lane].place(begin_ns, end_ns);
        if (track > 0) name_thread(header.rank, lane, track);
      }
      const std::string place = fmt::format(R"("name":{},"cat":"{}","pid":{},"tid":{},"ts":{})", names[record.name],
                                            lane_names[lane], header.rank, thread_of(lane, track),
                                            microseconds(begin_ns - start_ns_));
      if (record.kind == RecordKind::scalar) {
        write_scalar(record, place, names[record.name]);
        continue;
      }
      std::string arguments = fmt::format("\"step\":{}", record.step);
      append_label(arguments, "action", record.action, record.action != no_action, header.actions);
      append_label(arguments, "operation", static_cast<std::uint32_t>(record.operation),
                   record.operation != no_operation, header.operations);
      if (plan != nullptr && !std::isnan(predicted_us[i])) {
        arguments += fmt::format(",\"predicted_us\":{:.3f}", predicted_us[i]);
      }
      if (record.kind == RecordKind::instant) {
        event(fmt::format(R"({{{},"ph":"i","s":"t","args":{{{}}}}})", place, arguments));
        ++summary_.instants;
      } else {
        event(fmt::format(R"({{{},"dur":{},"ph":"X","args":{{{}}}}})", place, microseconds(end_ns - begin_ns),
                          arguments));
        ++summary_.spans;
      }
    }
    for (const ClockStep& step : axis.clock_steps()) {
      const json instant = {{"name", "clock step"}, {"cat", "host"}, {"ph", "i"}, {"s", "p"}, {"pid", header.rank},
                            {"tid", static_cast<int>(TraceLane::host)},
                            {"ts", static_cast<double>(axis.wall_ns(step.ticks) - start_ns_) * 1e-3},
                            {"args", {{"step", step.step}, {"size_s", static_cast<double>(step.size_ns) * 1e-9}}}};
      event(instant.dump());
    }
  }

  const ExportSummary& summary() const { return summary_; }

 private:
  void write_scalar(const TraceRecord& record, const std::string& place, const std::string& quoted_name) {
    const auto value = std::bit_cast<double>(record.duration);
    if (!std::isfinite(value)) {
      ++summary_.not_finite;
      return;
    }
    event(fmt::format(R"({{{},"ph":"C","args":{{{}:{}}}}})", place, quoted_name, json(value).dump()));
    ++summary_.scalars;
  }

  static void append_label(std::string& arguments, const char* key, std::uint32_t index, bool present,
                           const std::vector<std::string>& labels) {
    if (!present) return;
    arguments += index < labels.size() ? fmt::format(",\"{}\":{}", key, quoted(labels[index]))
                                       : fmt::format(",\"{}\":{}", key, index);
  }

  static std::size_t thread_of(std::size_t lane, std::size_t track) { return lane + track * lane_names.size(); }

  void metadata(const char* name, int rank, std::size_t thread, const std::string& arguments) {
    event(fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{{}}}}})", name, rank, thread, arguments));
  }

  /// Once for each thread.
  void name_thread(int rank, std::size_t lane, std::size_t track) {
    const std::size_t thread = thread_of(lane, track);
    if (!named_.insert({rank, thread}).second) return;
    const std::string suffix = track > 0 ? fmt::format(" {}", track + 1) : "";
    metadata("thread_name", rank, thread, fmt::format("\"name\":\"{}{}\"", lane_names[lane], suffix));
    metadata("thread_sort_index", rank, thread, fmt::format("\"sort_index\":{}", lane * 1000 + track));
  }

  void event(const std::string& text) {
    out_.write(first_ ? "\n" : ",\n");
    first_ = false;
    out_.write(text);
  }

  FileBeside& out_;
  std::int64_t start_ns_;
  bool first_ = true;
  std::set<std::pair<int, std::size_t>> named_;  // rank, thread
  ExportSummary summary_;
};

}  // namespace

ExportSummary export_chrome(const RunTraces& traces, const std::optional<PlanPrediction>& plan,
                            const std::filesystem::path& path) {
  PACELINE_CHECK(!traces.ranks.empty());
  std::int64_t start_ns = std::numeric_limits<std::int64_t>::max();
  const auto look_for_start = [&](const TraceFile& file) {
    const TimeAxis axis(file);
    for (const TraceRecord& record : file.records) start_ns = std::min(start_ns, axis.wall_ns(record.start));
  };
  for (const TraceFile& file : traces.earlier) look_for_start(file);
  for (const TraceFile& file : traces.ranks) look_for_start(file);
  const TraceHeader& first = traces.ranks.front().header;
  if (start_ns == std::numeric_limits<std::int64_t>::max()) start_ns = first.start_wall_ns;

  FileBeside out(path);
  out.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  ChromeWriter writer(out, start_ns);
  std::vector<int> described;
  const auto describe = [&](const TraceFile& file) {
    if (std::find(described.begin(), described.end(), file.header.rank) != described.end()) return;
    described.push_back(file.header.rank);
    writer.write_metadata(file.header);
  };
  for (const TraceFile& file : traces.ranks) describe(file);
  for (const TraceFile& file : traces.earlier) describe(file);
  for (const TraceFile& file : traces.earlier) writer.write_events(file, nullptr);
  for (const TraceFile& file : traces.ranks) writer.write_events(file, plan ? &*plan : nullptr);

  json links = json::array();
  for (const TraceLink& link : first.links) {
    links.push_back({{"trace_id", link.trace_id.hex()}, {"span_id", link.span_id.hex()}, {"name", link.name}});
  }
  const json other = {{"start_unix_ns", std::to_string(start_ns)}, {"trace_id", first.trace_id.hex()},
                      {"root_span_id", first.root_span_id.hex()},  {"run_id", first.run_id},
                      {"program_version", first.program_version},  {"world_size", first.world_size},
                      {"links", links}};
  out.write("\n],\"otherData\":" + other.dump(-1, ' ', false, json::error_handler_t::replace) + "}\n");
  out.finish();
  return writer.summary();
}

}  // namespace paceline
