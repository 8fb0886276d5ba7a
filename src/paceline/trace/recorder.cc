#include "paceline/trace/recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {
namespace {

void warn_on_standard_error(const std::string& message) { std::fprintf(stderr, "warning: %s\n", message.c_str()); }

/// Writes all of it, or returns the error's number.
int write_all(int descriptor, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::write(descriptor, bytes, size);
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
  return 0;
}

/// Gives the file of an earlier attempt a name of its own: rank_0.trace -> rank_0.1.trace, rank_0.2.trace, ...
void keep_earlier_attempt(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return;
  for (int attempt = 1;; ++attempt) {
    const auto kept = path.parent_path() / fmt::format("{}.{}.trace", path.stem().string(), attempt);
    if (std::filesystem::exists(kept)) continue;
    std::filesystem::rename(path, kept);
    return;
  }
}

}  // namespace

std::string trace_file_name(int rank) { return fmt::format("rank_{}.trace", rank); }

void RecorderLane::drain() { recorder_->drain(*this); }

Recorder::Recorder(const std::filesystem::path& path, TraceHeader header, TraceClock clock, Warn warn)
    : clock_(std::move(clock)), warn_(warn ? std::move(warn) : Warn(warn_on_standard_error)), path_(path) {
  PACELINE_CHECK(!header.names.empty() && header.names[step_name] == "step");
  header.time_stamp_counter = clock_.time_stamp_counter;
  header.ticks_per_second = clock_.ticks_per_second;
  header.start_ticks = clock_.ticks();
  header.start_wall_ns = clock_.wall_ns();
  header.start_monotonic_ns = clock_.monotonic_ns();
  if (const std::string reason = open_file(write_header(header)); !reason.empty()) {
    stop(reason);
    return;
  }

  pending_ = std::make_unique<TraceRecord[]>(lanes_.size() * RecorderLane::capacity + 1);
  block_.reserve(lanes_.size() * RecorderLane::capacity * sizeof(TraceRecord) + 64);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    RecorderLane& lane = lanes_[i];
    lane.lane_ = static_cast<TraceLane>(i);
    lane.clock_ = &clock_;
    lane.recorder_ = this;
    lane.ring_ = std::make_unique<TraceRecord[]>(RecorderLane::capacity);
    lane.enabled_.store(true, std::memory_order_release);
  }
}

std::string Recorder::open_file(const std::string& header) {
  try {
    if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path());
    keep_earlier_attempt(path_);
  } catch (const std::filesystem::filesystem_error& error) {
    return error.code().message();
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) return std::strerror(errno);
  if (const int error = write_all(descriptor_, header.data(), header.size())) {
    ::unlink(path_.c_str());
    return std::strerror(error);
  }
  written_ = header.size();
  return {};
}

Recorder::~Recorder() {
  flush();
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Recorder::begin_step(std::uint32_t step) {
  for (RecorderLane& lane : lanes_) lane.step_.store(step, std::memory_order_relaxed);
}

void Recorder::flush() {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) return;
  for (RecorderLane& lane : lanes_) take(lane);
  if (pending_count_ == 0) return;
  const auto monotonic = static_cast<std::uint64_t>(clock_.monotonic_ns());
  pending_[pending_count_++] = {clock_.ticks(),
                                static_cast<std::uint64_t>(clock_.wall_ns()),
                                lanes_[0].step(),
                                static_cast<std::uint32_t>(monotonic),
                                static_cast<std::int32_t>(monotonic >> 32),
                                step_name,
                                RecordKind::clock,
                                TraceLane::host};
  write_pending();
}

void Recorder::drain(RecorderLane& lane) {
  const std::lock_guard lock(mutex_);
  take(lane);
  write_pending();
}

void Recorder::take(RecorderLane& lane) {
  const std::uint64_t head = lane.published_.load(std::memory_order_acquire);
  for (std::uint64_t i = lane.tail_.load(std::memory_order_relaxed); i < head; ++i) {
    pending_[pending_count_++] = lane.ring_[i & (RecorderLane::capacity - 1)];
  }
  lane.tail_.store(head, std::memory_order_release);
}

void Recorder::write_pending() {
  const std::size_t count = std::exchange(pending_count_, 0);
  if (count == 0 || descriptor_ < 0) return;
  block_.clear();
  append_block(block_, pending_.get(), count);
  if (const int error = write_all(descriptor_, block_.data(), block_.size())) return stop(std::strerror(error));
  written_ += block_.size();
}

void Recorder::stop(const std::string& reason) {
  for (RecorderLane& lane : lanes_) lane.enabled_.store(false, std::memory_order_relaxed);
  if (descriptor_ >= 0) {
    // What is on disk so far stays readable without the half block; where that fails too, readers drop it.
    [[maybe_unused]] const int ignored = ::ftruncate(descriptor_, static_cast<off_t>(written_));
    ::close(descriptor_);
    descriptor_ = -1;
  }
  warn_(fmt::format("tracing stops, the run goes on: {}: {}", path_.string(), reason));
}

}  // namespace paceline
