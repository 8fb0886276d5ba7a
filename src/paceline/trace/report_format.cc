#include "paceline/trace/report_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "paceline/trace/explanation.h"

namespace paceline {
namespace {

using nlohmann::json;

constexpr std::size_t most_ranks_in_a_table = 8;
constexpr std::size_t most_operations_in_a_table = 10;

std::string difference_cell(double seconds) { return (seconds < 0 ? "" : "+") + format_seconds(seconds); }

std::string part_row(std::string_view name, const Timing& timing, double step, bool planned) {
  std::string row = fmt::format("{:<18}{:>11}{:>11}", name, format_seconds(timing.mean), format_seconds(timing.median));
  if (planned) {
    row += timing.predicted ? fmt::format("{:>11}{:>12}", format_seconds(*timing.predicted),
                                          difference_cell(timing.difference()))
                            : fmt::format("{:>11}{:>12}", "-", "-");
  }
  return row + fmt::format("{:>9.1f} %\n", step > 0 ? 100 * timing.mean / step : 0.0);
}

bool is_shown(const Timing& timing) { return timing.mean > 0 || timing.predicted.value_or(0) > 0; }

std::string parts_table(const TraceReport& report) {
  std::string text = fmt::format("{:<18}{:>11}{:>11}", "part of the step", "mean", "median");
  if (report.planned) text += fmt::format("{:>11}{:>12}", "plan", "difference");
  text += fmt::format("{:>11}\n", "share");
  for (std::size_t p = 0; p < report.parts.size(); ++p) {
    if (is_shown(report.parts[p])) {
      text += part_row(step_part_names[p], report.parts[p], report.step.mean, report.planned);
    }
  }
  return text + part_row("step", report.step, report.step.mean, report.planned);
}

std::string ranks_table(const TraceReport& report) {
  if (report.ranks.size() < 2 || report.ranks.size() > most_ranks_in_a_table) return "";
  const auto cell = [](const Timing& timing) {
    return timing.predicted ? fmt::format("{} ({})", format_seconds(timing.mean), format_seconds(*timing.predicted))
                            : format_seconds(timing.mean);
  };
  const int width = report.planned ? 22 : 11;
  std::string text = fmt::format("\n{:<18}", report.planned ? "mean (plan)" : "mean");
  for (const RankReport& rank : report.ranks) text += fmt::format("{:>{}}", fmt::format("rank {}", rank.rank), width);
  text += "\n";
  for (std::size_t p = 0; p < report.parts.size(); ++p) {
    if (!is_shown(report.parts[p])) continue;
    text += fmt::format("{:<18}", step_part_names[p]);
    for (const RankReport& rank : report.ranks) text += fmt::format("{:>{}}", cell(rank.parts[p]), width);
    text += "\n";
  }
  text += fmt::format("{:<18}", "step");
  for (const RankReport& rank : report.ranks) text += fmt::format("{:>{}}", cell(rank.step), width);
  return text + "\n";
}

/// One operation over the ranks that run it; seconds per step, means over those ranks.
struct OperationRow {
  std::string name;
  std::string action_kind;
  std::vector<int> ranks;
  double measured = 0;
  double predicted = 0;
  bool planned = true;  ///< on all of them
};

/// With a plan those that differ most, else those that take longest.
std::vector<OperationRow> operations_to_show(const TraceReport& report) {
  std::map<std::pair<std::string, std::string>, OperationRow> by_name;
  for (const OperationReport& operation : report.operations) {
    OperationRow& row = by_name[{operation.name, operation.action_kind}];
    row.name = operation.name;
    row.action_kind = operation.action_kind;
    row.ranks.push_back(operation.rank);
    row.measured += operation.measured_per_step();
    row.predicted += operation.predicted.value_or(0) * operation.executions;
    row.planned = row.planned && operation.predicted.has_value();
  }
  std::vector<OperationRow> rows;
  for (auto& [key, row] : by_name) {
    row.measured /= static_cast<double>(row.ranks.size());
    row.predicted /= static_cast<double>(row.ranks.size());
    rows.push_back(std::move(row));
  }
  const auto weight = [&](const OperationRow& row) {
    if (!report.planned) return row.measured;
    return row.planned ? std::abs(row.measured - row.predicted) : 0;
  };
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const OperationRow& a, const OperationRow& b) { return weight(a) > weight(b); });
  if (rows.size() > most_operations_in_a_table) rows.resize(most_operations_in_a_table);
  return rows;
}

std::string operations_table(const TraceReport& report) {
  const std::vector<OperationRow> rows = operations_to_show(report);
  if (rows.empty()) return "";
  std::string text = fmt::format("\n{:<30}{:<17}{:>8}{:>11}", "operation", "in", "ranks", "per step");
  if (report.planned) text += fmt::format("{:>11}{:>12}", "plan", "difference");
  text += "\n";
  for (const OperationRow& row : rows) {
    text += fmt::format("{:<30}{:<17}{:>8}{:>11}", row.name, row.action_kind, format_ranks(row.ranks),
                        format_seconds(row.measured));
    if (report.planned) {
      text += row.planned ? fmt::format("{:>11}{:>12}", format_seconds(row.predicted),
                                        difference_cell(row.measured - row.predicted))
                          : fmt::format("{:>11}{:>12}", "-", "-");
    }
    text += "\n";
  }
  return text;
}

json timing_as_json(const Timing& timing) {
  json object = {{"mean_s", timing.mean}, {"median_s", timing.median}};
  object["predicted_s"] = nullptr;
  object["difference_s"] = nullptr;
  if (timing.predicted) {
    object["predicted_s"] = *timing.predicted;
    object["difference_s"] = timing.difference();
  }
  return object;
}

json parts_as_json(const std::array<Timing, step_part_names.size()>& parts, double step) {
  json list = json::array();
  for (std::size_t p = 0; p < parts.size(); ++p) {
    json part = timing_as_json(parts[p]);
    part["part"] = step_part_names[p];
    part["share"] = step > 0 ? parts[p].mean / step : 0.0;
    list.push_back(std::move(part));
  }
  return list;
}

}  // namespace

std::string report_as_text(const TraceReport& report) {
  std::string text = fmt::format("run {}: {} of {} ranks, ", report.run_id, report.ranks.size(), report.world_size);
  text += report.steps.size() == 1 ? fmt::format("step {}", report.steps.front())
                                   : fmt::format("{} steps from {} to {}", report.steps.size(), report.steps.front(),
                                                 report.steps.back());
  if (report.skipped > 0) text += fmt::format(" (the first {} are left out)", report.skipped);
  text += "\n\n" + parts_table(report) + ranks_table(report) + operations_table(report);
  for (const BetweenSteps& between : report.between_steps) {
    text += fmt::format("\nbetween the steps: {}, {:.3g} times, {} in all", between.kind, between.count,
                        format_seconds(between.total_s));
  }
  if (!report.between_steps.empty()) text += "\n";
  return text + "\n" + explain(report) + ".\n";
}

json report_as_json(const TraceReport& report) {
  json ranks = json::array();
  for (const RankReport& rank : report.ranks) {
    json kinds = json::object();
    for (const auto& [kind, timing] : rank.kinds) kinds[kind] = timing_as_json(timing);
    ranks.push_back({{"rank", rank.rank},
                     {"coordinate", rank.coordinate},
                     {"step", timing_as_json(rank.step)},
                     {"parts", parts_as_json(rank.parts, rank.step.mean)},
                     {"kinds", std::move(kinds)}});
  }
  json operations = json::array();
  for (const OperationReport& operation : report.operations) {
    operations.push_back({{"rank", operation.rank},
                          {"action_kind", operation.action_kind},
                          {"operation", operation.operation},
                          {"name", operation.name},
                          {"executions_per_step", operation.executions},
                          {"mean_s", operation.mean},
                          {"predicted_s", operation.predicted ? json(*operation.predicted) : json()},
                          {"difference_per_step_s", operation.predicted ? json(operation.difference()) : json()}});
  }
  json between = json::array();
  for (const BetweenSteps& entry : report.between_steps) {
    between.push_back({{"kind", entry.kind}, {"count", entry.count}, {"total_s", entry.total_s}});
  }
  return {{"schema_version", 1},
          {"run_id", report.run_id},
          {"trace_id", report.trace_id},
          {"world_size", report.world_size},
          {"steps",
           {{"first", report.steps.front()},
            {"last", report.steps.back()},
            {"measured", report.steps.size()},
            {"skipped", report.skipped}}},
          {"step", timing_as_json(report.step)},
          {"parts", parts_as_json(report.parts, report.step.mean)},
          {"ranks", std::move(ranks)},
          {"operations", std::move(operations)},
          {"between_steps", std::move(between)},
          {"explanation", explain(report)},
          {"notices", report.notices}};
}

}  // namespace paceline
