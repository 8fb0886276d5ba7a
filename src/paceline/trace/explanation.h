#pragma once

#include <string>

#include "paceline/trace/trace_report.h"

namespace paceline {

/// One sentence, without a full stop, about where the step differs most from its plan: the kind of action, the ranks,
/// the numbers and, where the trace shows it, the cause: a wait is followed to the stage or the rank that was waited
/// for, computing to its operations. Without a plan, about the largest part of the step.
std::string explain(const TraceReport& report);

/// Seconds with a unit and three digits: "12.3 ms".
std::string format_seconds(double seconds);

}  // namespace paceline
