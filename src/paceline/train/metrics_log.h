#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>

namespace paceline {

/// `metrics.jsonl` of a run's folder: one JSON object a step, at full precision; numbers that are not finite are null.
class MetricsLog {
 public:
  /// Opens the file for appending. Lines of steps after `last_step` (of an attempt that was lost) and a torn last line
  /// are dropped first, by writing the rest beside the file and renaming it.
  MetricsLog(const std::filesystem::path& path, std::int64_t last_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void append(const nlohmann::ordered_json& metrics);

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace paceline
