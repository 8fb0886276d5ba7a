#include "paceline/trace/plan_prediction.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"

namespace paceline {
namespace {

using nlohmann::json;

auto key_of(const PlannedPart& part) { return std::tuple(part.rank, part.action); }
auto key_of(const PlannedOperation& operation) {
  return std::tuple<int, const std::string&, std::int32_t>(operation.rank, operation.action_kind, operation.operation);
}

double seconds(const json& object, const char* key, const std::filesystem::path& path) {
  const double value = object.at(key).get<double>();
  if (!std::isfinite(value) || value < 0) fail("{}: \"{}\" is {}, not a time", path.string(), key, value);
  return value;
}

}  // namespace

void PlanPrediction::index() {
  const auto by_key = [](const auto& a, const auto& b) { return key_of(a) < key_of(b); };
  std::stable_sort(parts.begin(), parts.end(), by_key);
  std::stable_sort(operations.begin(), operations.end(), by_key);
}

const PlannedPart* PlanPrediction::find_part(int rank, std::uint32_t action) const {
  const auto key = std::tuple(rank, action);
  const auto found = std::lower_bound(parts.begin(), parts.end(), key,
                                      [](const PlannedPart& part, const auto& k) { return key_of(part) < k; });
  return found != parts.end() && key_of(*found) == key ? &*found : nullptr;
}

const PlannedOperation* PlanPrediction::find_operation(int rank, const std::string& action_kind,
                                                       std::int32_t operation) const {
  const std::tuple<int, const std::string&, std::int32_t> key(rank, action_kind, operation);
  const auto found = std::lower_bound(operations.begin(), operations.end(), key,
                                      [](const PlannedOperation& o, const auto& k) { return key_of(o) < k; });
  return found != operations.end() && key_of(*found) == key ? &*found : nullptr;
}

std::optional<PlanPrediction> read_plan_prediction(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  std::ifstream in(path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || text.fail()) fail("{}: cannot be read or is empty", path.string());
  const json document = parse_json(text.str());
  if (document.is_discarded()) fail("{}: not valid JSON", path.string());
  PlanPrediction plan;
  try {
    if (const int version = whole_number<int>(document.at("schema_version")); version != 1) {
      fail("{}: plan schema version {}, this program reads version 1", path.string(), version);
    }
    const json& predicted = document.at("predicted");
    plan.step_time_s = seconds(predicted, "step_time_s", path);
    for (const json& part : predicted.at("parts")) {
      plan.parts.push_back({whole_number<int>(part.at("rank")), whole_number<std::uint32_t>(part.at("action")),
                            part.at("kind").get<std::string>(), seconds(part, "start_s", path),
                            seconds(part, "duration_s", path)});
    }
    for (const json& operation : predicted.value("operations", json::array())) {
      plan.operations.push_back({whole_number<int>(operation.at("rank")), operation.at("action_kind").get<std::string>(),
                                 whole_number<std::int32_t>(operation.at("operation")), operation.at("name").get<std::string>(),
                                 seconds(operation, "duration_s", path)});
    }
  } catch (const json::exception& error) {
    fail("{}: not a plan that this program reads: {}", path.string(), error.what());
  }
  plan.index();
  return plan;
}

}  // namespace paceline
