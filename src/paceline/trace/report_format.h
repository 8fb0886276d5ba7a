#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "paceline/trace/trace_report.h"

namespace paceline {

/// The report as tables with the explaining sentence at the end, for a terminal.
std::string report_as_text(const TraceReport& report);

/// The same as one JSON document; times in seconds, null where the plan says nothing.
nlohmann::json report_as_json(const TraceReport& report);

}  // namespace paceline
