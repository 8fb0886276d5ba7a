#include "paceline/train/metrics_log.h"

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"

#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace paceline {
namespace {

void keep_until(const std::filesystem::path& path, std::int64_t last_step) {
  std::ifstream old(path);
  if (!old) return;
  const std::filesystem::path beside = path.string() + ".tmp";
  std::ofstream kept(beside, std::ios::trunc);
  std::string line;
  while (std::getline(old, line)) {
    const nlohmann::json metrics = parse_json(line);
    if (metrics.is_object() && metrics.value("step", std::int64_t{0}) <= last_step) kept << line << '\n';
  }
  kept.close();
  if (!kept) fail("{}: cannot be written: {}", beside.string(), std::strerror(errno));
  std::filesystem::rename(beside, path);
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, std::int64_t last_step) : path_(path) {
  keep_until(path, last_step);
  file_ = std::fopen(path.c_str(), "ae");
  if (file_ == nullptr) fail("{}: cannot be opened for writing: {}", path.string(), std::strerror(errno));
}

MetricsLog::~MetricsLog() { std::fclose(file_); }

void MetricsLog::append(const nlohmann::ordered_json& metrics) {
  const std::string line = metrics.dump() + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    fail("{}: cannot be written: {}; free space and start the same command again", path_.string(), std::strerror(errno));
  }
}

}  // namespace paceline
