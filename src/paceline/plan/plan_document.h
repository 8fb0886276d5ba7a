#pragma once

#include "paceline/plan/search.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace paceline {

/// One plan as the `plan.json` of a run's folder, schema version 1. In "predicted": "step_time_s", "tokens_per_s",
/// "memory" (bytes of the largest rank by class, and "total"), "parts" (every rank's actions: "action" is the index in
/// the rank's schedule list) and "operations" (once each, as it runs in an action of "action_kind"; "operation" is the
/// index in the rank's Program::operations).
nlohmann::ordered_json plan_document(const Plan& plan);

/// A whole search for `paceline plan --json`: "plans" (best first, without parts and operations) and "refused".
nlohmann::ordered_json search_document(const LayoutSearch& search);

/// Writes a document beside its place and renames it there.
void write_plan(const Plan& plan, const std::string& path);

}  // namespace paceline
