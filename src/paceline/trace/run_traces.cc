#include "paceline/trace/run_traces.h"

#include <algorithm>
#include <map>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {
namespace {

struct TracePaths {
  std::vector<std::filesystem::path> current;  // rank_<r>.trace
  std::vector<std::filesystem::path> earlier;  // rank_<r>.<n>.trace
};

TracePaths find_trace_files(const std::filesystem::path& run) {
  const std::filesystem::path folder = run / "trace";
  if (!std::filesystem::is_directory(run)) fail("{}: no such run folder", run.string());
  if (!std::filesystem::is_directory(folder)) fail("{}: the run has no trace folder", run.string());
  TracePaths paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("rank_") || !name.ends_with(".trace")) continue;
    const bool earlier = std::count(name.begin(), name.end(), '.') > 1;
    (earlier ? paths.earlier : paths.current).push_back(entry.path());
  }
  std::sort(paths.current.begin(), paths.current.end());
  std::sort(paths.earlier.begin(), paths.earlier.end());
  if (paths.current.empty()) fail("{}: holds no rank_<r>.trace", folder.string());
  return paths;
}

bool started_before(const TraceFile& a, const TraceFile& b) {
  return std::pair(a.header.start_wall_ns, a.header.rank) < std::pair(b.header.start_wall_ns, b.header.rank);
}

}  // namespace

std::string format_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

RunTraces read_run_traces(const std::filesystem::path& run) {
  const TracePaths paths = find_trace_files(run);
  RunTraces traces;
  std::vector<TraceFile> files;
  for (const auto& path : paths.current) files.push_back(read_trace_file(path));
  const SpanId newest = std::max_element(files.begin(), files.end(), started_before)->header.root_span_id;

  std::map<int, TraceFile> ranks;
  for (TraceFile& file : files) {
    // A rank of an earlier attempt with more ranks has no newer file of its own.
    if (file.header.root_span_id != newest) {
      traces.earlier.push_back(std::move(file));
      continue;
    }
    traces.notices.insert(traces.notices.end(), file.notices.begin(), file.notices.end());
    const int rank = file.header.rank;
    if (const auto [place, fresh] = ranks.try_emplace(rank, std::move(file)); !fresh) {
      fail("{}: says that it is of rank {}, and so does {}", file.path.string(), rank, place->second.path.string());
    }
  }
  for (const auto& path : paths.earlier) {
    try {
      traces.earlier.push_back(read_trace_file(path));
    } catch (const Error& error) {
      traces.notices.push_back(fmt::format("left out: {}", error.what()));
    }
  }
  std::sort(traces.earlier.begin(), traces.earlier.end(), started_before);

  const int world_size = ranks.begin()->second.header.world_size;
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!ranks.contains(rank)) missing.push_back(rank);
    if (missing.size() > 1000) break;  // a header may claim any world size
  }
  if (!missing.empty()) {
    traces.notices.push_back(fmt::format("no trace of rank{} {} in the newest attempt of {} ranks",
                                         missing.size() == 1 ? "" : "s", format_ranks(missing), world_size));
  }
  for (auto& [rank, file] : ranks) traces.ranks.push_back(std::move(file));
  return traces;
}

}  // namespace paceline
