#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "paceline/trace/plan_prediction.h"
#include "paceline/trace/run_traces.h"

namespace paceline {

/// What an export wrote.
struct ExportSummary {
  std::size_t spans = 0;
  std::size_t instants = 0;
  std::size_t scalars = 0;
  std::size_t not_finite = 0;  ///< scalars left out because JSON has no NaN and no infinity
};

/// Writes all ranks and attempts of a run on one time axis as a Chrome trace, JSON object format, which Perfetto and
/// chrome://tracing open: a process per rank, a thread per lane (more where its spans overlap), `ts` in microseconds
/// after `otherData.start_unix_ns`; a span's `args` hold step, action, operation and, where the plan has it,
/// `predicted_us`. Written beside and renamed; a file that cannot be written is one clear error.
ExportSummary export_chrome(const RunTraces& traces, const std::optional<PlanPrediction>& plan,
                            const std::filesystem::path& path);

}  // namespace paceline
