#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace paceline {

/// Shows how far long work is: on a terminal one line that is rewritten, with a bar and an estimate of the time left;
/// elsewhere plain lines, at most one in `seconds_between_lines`. Writes to standard error.
class Progress {
 public:
  /// `total` in `unit`; `done` is where the work begins (a resumed run).
  Progress(std::string what, std::string unit, std::int64_t total, std::int64_t done = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `detail` is shown behind the bar ("loss 4.21").
  void update(std::int64_t done, const std::string& detail = {});
  /// A line that stays, above the bar.
  void line(const std::string& text);
  /// Ends the bar's line.
  void finish();

 private:
  std::string text(std::int64_t done, const std::string& detail) const;

  std::string what_;
  std::string unit_;
  std::int64_t total_;
  std::int64_t first_;
  int columns_ = 0;  ///< of the terminal; 0: none
  bool is_open_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_;
};

/// "1:02:03", "2:03" or "45 s".
std::string duration_text(double seconds);

}  // namespace paceline
