#include "paceline/trace/report_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

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

/// With a plan those that differ most, else those that take longest.
std::vector<OperationReport> operations_to_show(const TraceReport& report) {
  std::vector<OperationReport> shown = report.operations;
  const auto weight = [&](const OperationReport& operation) {
    return report.planned ? std::abs(operation.difference()) : operation.measured_per_step();
  };
  std::stable_sort(shown.begin(), shown.end(), [&](const OperationReport& a, const OperationReport& b) {
    return weight(a) > weight(b);
  });
  if (shown.size() > most_operations_in_a_table) shown.resize(most_operations_in_a_table);
  return shown;
}

std::string operations_table(const TraceReport& report) {
  const std::vector<OperationReport> shown = operations_to_show(report);
  if (shown.empty()) return "";
  std::string text = fmt::format("\n{:<30}{:<17}{:>5}{:>11}", "operation", "in", "rank", "per step");
  if (report.planned) text += fmt::format("{:>11}{:>12}", "plan", "difference");
  text += "\n";
  for (const OperationReport& operation : shown) {
    text += fmt::format("{:<30}{:<17}{:>5}{:>11}", operation.name, operation.action_kind, operation.rank,
                        format_seconds(operation.measured_per_step()));
    if (report.planned && operation.predicted) {
      text += fmt::format("{:>11}{:>12}", format_seconds(*operation.predicted * operation.executions),
                          difference_cell(operation.difference()));
    } else if (report.planned) {
      text += fmt::format("{:>11}{:>12}", "-", "-");
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
