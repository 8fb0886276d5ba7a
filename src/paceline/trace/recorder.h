#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "paceline/trace/record.h"
#include "paceline/trace/trace_clock.h"
#include "paceline/trace/trace_file.h"

namespace paceline {

class Recorder;

/// One lane's buffer: one thread at a time records into it, without a lock; the recorder drains it. Of a disabled
/// recorder, each call costs one branch.
class RecorderLane {
 public:
  RecorderLane() = default;
  RecorderLane(const RecorderLane&) = delete;
  RecorderLane& operator=(const RecorderLane&) = delete;

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  std::uint64_t ticks() const { return clock_->ticks(); }
  std::uint32_t step() const { return step_.load(std::memory_order_relaxed); }

  /// A point in time.
  void instant(NameId name, std::uint32_t action = no_action, std::int32_t operation = no_operation) {
    if (enabled()) push({ticks(), 0, step(), action, operation, name, RecordKind::instant, lane_});
  }

  /// A value at a point in time, e.g. bytes in use.
  void scalar(NameId name, double value, std::uint32_t action = no_action) {
    if (enabled()) {
      push({ticks(), std::bit_cast<std::uint64_t>(value), step(), action, no_operation, name, RecordKind::scalar,
            lane_});
    }
  }

  /// A span measured elsewhere; `start` and `end` are readings of ticks().
  void span(NameId name, std::uint64_t start, std::uint64_t end, std::uint32_t step, std::uint32_t action = no_action,
            std::int32_t operation = no_operation) {
    push({start, end > start ? end - start : 0, step, action, operation, name, RecordKind::span, lane_});
  }

 private:
  friend class Recorder;
  static constexpr std::size_t capacity = 8192;  // records, a power of two: 256 KiB

  void push(const TraceRecord& record) {
    if (head_ - tail_.load(std::memory_order_acquire) == capacity) [[unlikely]] drain();
    ring_[head_ & (capacity - 1)] = record;
    published_.store(++head_, std::memory_order_release);
  }
  void drain();

  std::atomic<bool> enabled_{false};
  TraceLane lane_ = TraceLane::compute;
  std::atomic<std::uint32_t> step_{0};
  const TraceClock* clock_ = nullptr;
  Recorder* recorder_ = nullptr;
  std::unique_ptr<TraceRecord[]> ring_;
  std::uint64_t head_ = 0;
  std::atomic<std::uint64_t> published_{0};
  alignas(64) std::atomic<std::uint64_t> tail_{0};
};

/// Records what one rank does into its own file. Without a path it is disabled. Buffers are allocated at the start and
/// written by flush() at step ends (or by the lane that is full), so a process that is killed loses its current step at
/// most. When the file cannot be written (a full disk) there is one warning and the tracing ends, never the run.
///
///     NameTable names;
///     const NameId forward = names.intern("forward");
///     header.names = names.names();
///     Recorder recorder(run / "trace" / trace_file_name(rank), header);
///     for (step ...) {
///       recorder.begin_step(step);
///       {
///         Span whole(recorder, step_name);
///         Span span(recorder, forward, action, operation);
///       }
///       recorder.flush();
///     }
///
/// A span of a whole action has no operation and the action's kind as its name; the spans of its operations lie inside.
class Recorder {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// Disabled: records nothing.
  Recorder() = default;

  /// Opens the file, making its folder; an earlier file of the same name (the attempt before a resume) is kept as
  /// rank_<r>.<n>.trace. Fills in the clock fields of `header`, whose names must begin with "step". What goes wrong,
  /// here or later, is one line through `warn` (by default to standard error) and a disabled recorder.
  Recorder(const std::filesystem::path& path, TraceHeader header, TraceClock clock = TraceClock::system(),
           Warn warn = {});
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder();

  bool enabled() const { return lanes_[0].enabled(); }
  RecorderLane& lane(TraceLane lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  /// The step of all records that begin from now on.
  void begin_step(std::uint32_t step);

  /// Writes what the lanes hold, with a reading of all clocks. Any thread; spans still open are written when they end.
  void flush();

 private:
  friend class RecorderLane;
  std::string open_file(const std::string& header);
  void drain(RecorderLane& lane);
  void take(RecorderLane& lane);
  void write_pending();
  void stop(const std::string& reason);

  std::array<RecorderLane, lane_names.size()> lanes_;
  TraceClock clock_;
  Warn warn_;
  std::filesystem::path path_;
  std::mutex mutex_;  // the file and everything below
  int descriptor_ = -1;
  std::uint64_t written_ = 0;  // bytes of whole blocks
  std::unique_ptr<TraceRecord[]> pending_;
  std::size_t pending_count_ = 0;
  std::string block_;
};

/// "rank_<rank>.trace".
std::string trace_file_name(int rank);

/// Measures from its construction to the end of its scope.
class Span {
 public:
  Span(RecorderLane& lane, NameId name, std::uint32_t action = no_action, std::int32_t operation = no_operation)
      : lane_(lane.enabled() ? &lane : nullptr), action_(action), operation_(operation), name_(name) {
    if (lane_ != nullptr) {
      step_ = lane.step();
      start_ = lane.ticks();
    }
  }
  /// On the compute lane.
  Span(Recorder& recorder, NameId name, std::uint32_t action = no_action, std::int32_t operation = no_operation)
      : Span(recorder.lane(TraceLane::compute), name, action, operation) {}
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() {
    if (lane_ != nullptr) lane_->span(name_, start_, lane_->ticks(), step_, action_, operation_);
  }

 private:
  RecorderLane* lane_;
  std::uint64_t start_ = 0;
  std::uint32_t step_ = 0;
  std::uint32_t action_;
  std::int32_t operation_;
  NameId name_;
};

}  // namespace paceline
