#include "paceline/base/progress.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace paceline {
namespace {

constexpr double seconds_between_lines = 5.0;
constexpr double seconds_between_redraws = 0.1;

/// Width of the terminal that standard error ends on; 0 where there is none. A launcher that stands between says it in
/// PACELINE_TERMINAL_COLUMNS.
int terminal_columns() {
  if (isatty(STDERR_FILENO) != 0) {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
  }
  const char* columns = std::getenv("PACELINE_TERMINAL_COLUMNS");
  return columns == nullptr ? 0 : std::max(0, std::atoi(columns));
}

double seconds_since(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - time).count();
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  if (whole >= 60) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

Progress::Progress(std::string what, std::string unit, std::int64_t total, std::int64_t done)
    : what_(std::move(what)), unit_(std::move(unit)), total_(total), first_(done), columns_(terminal_columns()),
      start_(std::chrono::steady_clock::now()), last_(start_ - std::chrono::hours(1)) {}

Progress::~Progress() { finish(); }

std::string Progress::text(std::int64_t done, const std::string& detail) const {
  const double elapsed = seconds_since(start_);
  const double rate = elapsed > 0 ? static_cast<double>(done - first_) / elapsed : 0;
  std::string line = fmt::format("{} {}/{} {}", what_, done, total_, unit_);
  if (columns_ > 0 && total_ > 0) {
    constexpr std::int64_t cells = 16;
    const std::int64_t full = std::clamp<std::int64_t>(done * cells / total_, 0, cells);
    line += " [" + std::string(full, '#') + std::string(cells - full, '.') + "]";
  } else if (total_ > 0) {
    line += fmt::format(" ({} %)", done * 100 / total_);
  }
  if (!detail.empty()) line += "  " + detail;
  if (rate > 0 && done < total_) line += "  " + duration_text(static_cast<double>(total_ - done) / rate) + " left";
  return line;
}

void Progress::update(std::int64_t done, const std::string& detail) {
  const double wait = columns_ > 0 ? seconds_between_redraws : seconds_between_lines;
  if (seconds_since(last_) < wait && done < total_) return;
  last_ = std::chrono::steady_clock::now();
  std::string line = text(done, detail);
  if (columns_ > 0) {
    if (static_cast<int>(line.size()) >= columns_) line.resize(columns_ - 1);
    std::fputs(("\r\x1b[K" + line).c_str(), stderr);
    is_open_ = true;
  } else {
    std::fputs((line + "\n").c_str(), stderr);
  }
  std::fflush(stderr);
}

void Progress::line(const std::string& message) {
  std::fputs(((is_open_ ? "\r\x1b[K" : "") + message + "\n").c_str(), stderr);
  std::fflush(stderr);
  is_open_ = false;
  last_ = start_ - std::chrono::hours(1);
}

void Progress::finish() {
  if (is_open_) std::fputs("\n", stderr);
  is_open_ = false;
}

}  // namespace paceline
