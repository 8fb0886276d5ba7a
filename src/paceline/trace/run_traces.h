#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "paceline/trace/trace_file.h"

namespace paceline {

/// The trace files of one run folder.
struct RunTraces {
  std::vector<TraceFile> ranks;      ///< the newest attempt, by rank
  std::vector<TraceFile> earlier;    ///< attempts before a resume, oldest first
  std::vector<std::string> notices;  ///< one line each: torn tails, ranks without a file, unreadable earlier attempts
};

/// Reads RUN/trace/rank_<r>.trace and the earlier attempts beside them, rank_<r>.<n>.trace. An attempt's files are
/// those with one root span; the newest is the one that started last. One clear error for a folder that is not there,
/// holds no trace, or holds a damaged rank_<r>.trace.
RunTraces read_run_traces(const std::filesystem::path& run);

/// Ascending ranks in short: 1, 2, 3 and 5 as "1-3, 5".
std::string format_ranks(const std::vector<int>& ranks);

}  // namespace paceline
