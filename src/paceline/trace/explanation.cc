#include "paceline/trace/explanation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace paceline {
namespace {

constexpr double agreement = 0.03;         // of the step: a smaller difference is none
constexpr double part_of_the_cause = 0.3;  // a cause explains at least this much of the difference

std::string format_percent(double fraction) { return fmt::format("{:.0f} %", 100 * fraction); }

/// "1.8 x the plan", "against 2.0 ms in the plan" where the ratio says nothing.
std::string against_plan(double measured, double predicted) {
  if (predicted <= 0) return "the plan has none";
  const double ratio = measured / predicted;
  if (ratio > 20) return fmt::format("against {} in the plan", format_seconds(predicted));
  return fmt::format("{:.{}f} x the plan", ratio, ratio < 1.1 ? 2 : 1);
}

std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", format_ranks(ranks));
}

std::optional<int> stage_of(const RankReport& rank) {
  const auto found = rank.coordinate.find("pp");
  if (found == rank.coordinate.end()) return std::nullopt;
  return found->second;
}

Timing kind_of(const RankReport& rank, const std::string& kind) {
  const auto found = rank.kinds.find(kind);
  return found == rank.kinds.end() ? Timing{} : found->second;
}

/// The last word of an operation's name: layers.3.attention is attention.
std::string operation_family(const std::string& name) { return name.substr(name.rfind('.') + 1); }

/// "most of it in attention", from the operations of these ranks in this kind of action; empty without such records.
std::string blame_operations(const TraceReport& report, const std::vector<int>& ranks, const std::string& kind,
                             double difference) {
  std::map<std::string, double> by_family;
  for (const OperationReport& operation : report.operations) {
    if (operation.action_kind != kind || !operation.predicted) continue;
    if (std::find(ranks.begin(), ranks.end(), operation.rank) == ranks.end()) continue;
    by_family[operation_family(operation.name)] += operation.difference() / static_cast<double>(ranks.size());
  }
  if (by_family.empty()) return "";
  const auto largest = std::max_element(by_family.begin(), by_family.end(), [&](const auto& a, const auto& b) {
    return difference > 0 ? a.second < b.second : a.second > b.second;
  });
  const double share = largest->second / difference;
  if (share < 0.1) return ", none of it in the recorded operations";
  const std::string amount =
      fmt::format("{} ({} of {})", largest->first, format_seconds(std::abs(largest->second)),
                  format_seconds(std::abs(difference)));
  return share >= 0.5 ? ", most of it in " + amount : ", the largest share in " + amount;
}

/// What the ranks of a set spend on one kind of action.
struct Group {
  std::vector<int> ranks;
  double measured = 0;
  double predicted = 0;
  double difference() const { return measured - predicted; }
};

template <typename Predicate>
Group group_of(const TraceReport& report, const std::string& kind, Predicate belongs) {
  Group group;
  for (const RankReport& rank : report.ranks) {
    if (!belongs(rank)) continue;
    const Timing timing = kind_of(rank, kind);
    group.ranks.push_back(rank.rank);
    group.measured += timing.mean;
    group.predicted += timing.predicted.value_or(0);
  }
  if (!group.ranks.empty()) {
    group.measured /= static_cast<double>(group.ranks.size());
    group.predicted /= static_cast<double>(group.ranks.size());
  }
  return group;
}

/// A pipeline stage that waits: which stage before (or after) it computes longer than planned.
std::string blame_stage(const TraceReport& report, const std::vector<int>& waiting, const std::string& kind,
                        double difference) {
  const bool upstream = kind == "receive_activation";
  std::set<int> waiting_stages;
  std::set<int> stages;
  for (const RankReport& rank : report.ranks) {
    const auto stage = stage_of(rank);
    if (!stage) return "";
    stages.insert(*stage);
    if (std::find(waiting.begin(), waiting.end(), rank.rank) != waiting.end()) waiting_stages.insert(*stage);
  }
  const int waits = upstream ? *waiting_stages.begin() : *waiting_stages.rbegin();
  std::optional<int> culprit;
  std::string culprit_kind;
  Group slowest;
  for (const int stage : stages) {
    if (upstream ? stage >= waits : stage <= waits) continue;
    for (const std::string computing : {"forward", "backward", "backward_input"}) {
      const Group group =
          group_of(report, computing, [stage](const RankReport& rank) { return stage_of(rank) == stage; });
      if (group.predicted > 0 && (!culprit || group.difference() > slowest.difference())) {
        culprit = stage;
        culprit_kind = computing;
        slowest = group;
      }
    }
  }
  if (!culprit || slowest.difference() < part_of_the_cause * difference) {
    return fmt::format(": stage {} waits, though no stage {} it computes much slower than predicted", waits,
                       upstream ? "before" : "after");
  }
  return fmt::format(": stage {} waits for stage {}, whose {} is {:.1f} x slower than predicted{}", waits, *culprit,
                     culprit_kind, slowest.measured / slowest.predicted,
                     blame_operations(report, slowest.ranks, culprit_kind, slowest.difference()));
}

/// In a collective all end together, so the rank that waits least came last.
std::string blame_last_arrival(const TraceReport& report, const std::string& kind) {
  if (report.ranks.size() < 2) return "";
  const auto waits_less = [&](const RankReport& a, const RankReport& b) {
    return kind_of(a, kind).mean < kind_of(b, kind).mean;
  };
  const auto [least, most] = std::minmax_element(report.ranks.begin(), report.ranks.end(), waits_less);
  const double shortest = kind_of(*least, kind).mean;
  const double longest = kind_of(*most, kind).mean;
  if (shortest > 0.5 * longest) return "";
  return fmt::format(": rank {} arrives last, it waits {} there and rank {} {}", least->rank, format_seconds(shortest),
                     most->rank, format_seconds(longest));
}

std::string explain_without_plan(const TraceReport& report) {
  const auto largest = std::max_element(report.parts.begin(), report.parts.end(),
                                        [](const Timing& a, const Timing& b) { return a.mean < b.mean; });
  const auto part = static_cast<std::size_t>(largest - report.parts.begin());
  const auto takes_less = [part](const RankReport& a, const RankReport& b) {
    return a.parts[part].mean < b.parts[part].mean;
  };
  const auto [least, most] = std::minmax_element(report.ranks.begin(), report.ranks.end(), takes_less);
  std::string spread;
  if (report.ranks.size() > 1) {
    spread = fmt::format(", from {} on rank {} to {} on rank {}", format_seconds(least->parts[part].mean), least->rank,
                         format_seconds(most->parts[part].mean), most->rank);
  }
  return fmt::format("{} is the largest part: {} of the step of {}{}", step_part_names[part],
                     format_percent(largest->mean / report.step.mean), format_seconds(report.step.mean), spread);
}

/// The kind of action (idle included, as the empty text) whose mean over the ranks is farthest from the plan.
std::pair<std::string, double> largest_difference(const TraceReport& report) {
  std::map<std::string, double> differences;
  constexpr auto idle = static_cast<std::size_t>(StepPart::idle);
  for (const RankReport& rank : report.ranks) {
    for (const auto& [kind, timing] : rank.kinds) differences[kind] += timing.difference();
    differences[""] += rank.parts[idle].difference();
  }
  const auto largest = std::max_element(differences.begin(), differences.end(), [](const auto& a, const auto& b) {
    return std::abs(a.second) < std::abs(b.second);
  });
  return {largest->first, largest->second / static_cast<double>(report.ranks.size())};
}

}  // namespace

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  const auto [unit, name] = size >= 0.9995      ? std::pair(1.0, "s")
                            : size >= 0.9995e-3 ? std::pair(1e3, "ms")
                                                : std::pair(1e6, "us");
  const double value = seconds * unit;
  const int decimals = std::abs(value) < 9.995 ? 2 : std::abs(value) < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, name);
}

std::string explain(const TraceReport& report) {
  if (!report.planned) return explain_without_plan(report);
  const auto [kind, mean_difference] = largest_difference(report);
  const double step = report.step.mean;
  const double planned_step = report.step.predicted.value_or(0);
  if (std::abs(mean_difference) < agreement * step) {
    return fmt::format("the step takes {}, {}, and no part differs by more than {} of the step", format_seconds(step),
                       against_plan(step, planned_step), format_percent(agreement));
  }

  if (kind.empty()) {
    const Timing& idle = report.parts[static_cast<std::size_t>(StepPart::idle)];
    return fmt::format("{} of the step ({}) lies in no recorded span, the plan leaves {} idle",
                       format_percent(idle.mean / step), format_seconds(idle.mean),
                       format_seconds(idle.predicted.value_or(0)));
  }

  // The ranks that the difference is on: at least half as far off as the farthest.
  double farthest = 0;
  for (const RankReport& rank : report.ranks) {
    const double difference = kind_of(rank, kind).difference();
    if (difference * mean_difference > 0) farthest = std::max(farthest, std::abs(difference));
  }
  const Group group = group_of(report, kind, [&](const RankReport& rank) {
    const double difference = kind_of(rank, kind).difference();
    return difference * mean_difference > 0 && std::abs(difference) >= 0.5 * farthest;
  });
  std::string text = fmt::format("{} on {} takes {} of the step ({}), {}", kind, name_ranks(group.ranks),
                                 format_percent(group.measured / step), format_seconds(group.measured),
                                 against_plan(group.measured, group.predicted));
  const StepPart part = step_part_of(kind);
  if (kind == "receive_activation" || kind == "receive_gradient") {
    if (mean_difference > 0) text += blame_stage(report, group.ranks, kind, group.difference());
  } else if (part == StepPart::reduce || part == StepPart::gradient_norm) {
    if (mean_difference > 0) text += blame_last_arrival(report, kind);
  } else {
    text += blame_operations(report, group.ranks, kind, group.difference());
  }
  return text;
}

}  // namespace paceline
