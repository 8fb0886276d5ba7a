#include "paceline/trace/trace_report.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "paceline/base/error.h"
#include "paceline/trace/recorded_steps.h"
#include "paceline/trace/time_axis.h"

namespace paceline {
namespace {

constexpr std::size_t warm_up_steps = 2;

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// The action kinds of a run, numbered.
class Kinds {
 public:
  std::size_t number_of(const std::string& kind) {
    const auto [place, fresh] = numbers_.try_emplace(kind, names_.size());
    if (fresh) names_.push_back(kind);
    return place->second;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> names_;
};

/// One rank's measured steps: seconds by [step][kind], the last kind is idle.
struct MeasuredRank {
  std::vector<double> step_times;
  std::vector<std::vector<double>> kind_times;
};

std::vector<TimedAction> whole_actions(const RecordedStep& step, const TraceFile& file, const TimeAxis& axis,
                                       Kinds& kinds) {
  std::vector<TimedAction> actions;
  for (const TraceRecord* span : step.spans) {
    if (span->operation != no_operation) continue;
    const double start = axis.seconds(span->start - step.start);
    actions.push_back({start, start + axis.seconds(span->duration), static_cast<std::size_t>(span->lane),
                       kinds.number_of(file.header.names[span->name])});
  }
  return actions;
}

/// Where the planner's simulation runs a kind of action: beside the computing where the rank does not wait for it.
std::size_t planned_lane(const std::string& kind) {
  return kind.starts_with("send") || kind == "reduce_bucket" ? 1 : 0;
}

/// Predicted seconds by kind for one rank, idle last; nothing where the plan does not know the rank.
std::optional<std::vector<double>> predicted_times(const PlanPrediction& plan, int rank, Kinds& kinds) {
  std::vector<TimedAction> actions;
  double length = plan.step_time_s;
  for (const PlannedPart& part : plan.parts) {
    if (part.rank != rank) continue;
    const double end = part.start_s + part.duration_s;
    actions.push_back({part.start_s, end, planned_lane(part.kind), kinds.number_of(part.kind)});
    length = std::max(length, end);
  }
  if (actions.empty()) return std::nullopt;
  return exposed_times(actions, length, kinds.names().size());
}

std::vector<std::uint32_t> common_steps(const std::vector<std::vector<RecordedStep>>& recorded) {
  std::map<std::uint32_t, std::size_t> seen;
  for (const auto& steps : recorded) {
    for (const RecordedStep& step : steps) ++seen[step.step];
  }
  std::vector<std::uint32_t> common;
  for (const auto& [step, count] : seen) {
    if (count == recorded.size()) common.push_back(step);
  }
  return common;
}

void choose_steps(TraceReport& report, std::vector<std::uint32_t> whole, std::optional<std::uint32_t> only_step,
                  const std::string& folder) {
  if (whole.empty()) fail("{}: no training step was recorded whole on all ranks", folder);
  if (only_step) {
    if (!std::binary_search(whole.begin(), whole.end(), *only_step)) {
      refuse("step {} was not recorded whole on all ranks; steps between {} and {} were", *only_step, whole.front(),
             whole.back());
    }
    report.steps = {*only_step};
    return;
  }
  if (whole.size() > warm_up_steps) {
    whole.erase(whole.begin(), whole.begin() + warm_up_steps);
    report.skipped = warm_up_steps;
  } else {
    report.notices.push_back(fmt::format("only {} steps were recorded, so the first ones, which warm up, count too",
                                         whole.size()));
  }
  report.steps = std::move(whole);
}

/// The operations of one rank's measured steps.
void add_operations(TraceReport& report, const TraceFile& file, const TimeAxis& axis,
                    const std::vector<const RecordedStep*>& steps, const PlanPrediction* plan) {
  struct Sum {
    double seconds = 0;
    double count = 0;
    NameId name = 0;
  };
  std::map<std::pair<NameId, std::int32_t>, Sum> sums;
  for (const RecordedStep* step : steps) {
    for (const TraceRecord* span : step->spans) {
      if (span->operation == no_operation) continue;
      const auto kind = step->action_kinds.find(span->action);
      if (kind == step->action_kinds.end()) continue;
      Sum& sum = sums[{kind->second, span->operation}];
      sum.seconds += axis.seconds(span->duration);
      sum.count += 1;
      sum.name = span->name;
    }
  }
  const TraceHeader& header = file.header;
  for (const auto& [key, sum] : sums) {
    OperationReport operation;
    operation.rank = header.rank;
    operation.action_kind = header.names[key.first];
    operation.operation = key.second;
    operation.executions = sum.count / static_cast<double>(steps.size());
    operation.mean = sum.seconds / sum.count;
    const PlannedOperation* planned =
        plan != nullptr ? plan->find_operation(header.rank, operation.action_kind, operation.operation) : nullptr;
    if (planned != nullptr) operation.predicted = planned->duration_s;
    if (static_cast<std::size_t>(key.second) < header.operations.size()) {
      operation.name = header.operations[static_cast<std::size_t>(key.second)];
    } else {
      operation.name = planned != nullptr ? planned->name : header.names[sum.name];
    }
    report.operations.push_back(std::move(operation));
  }
}

/// Outermost spans that lie in no training step: evaluations, checkpoints.
void add_between_steps(std::map<std::string, BetweenSteps>& between, const TraceFile& file, const TimeAxis& axis,
                       const std::vector<RecordedStep>& steps) {
  std::vector<const TraceRecord*> spans;
  for (const TraceRecord& record : file.records) {
    if (record.kind == RecordKind::span && record.name != step_name && record.operation == no_operation) {
      spans.push_back(&record);
    }
  }
  std::sort(spans.begin(), spans.end(), [](const TraceRecord* a, const TraceRecord* b) {
    return a->start != b->start ? a->start < b->start : a->duration > b->duration;
  });
  std::vector<std::pair<std::uint64_t, std::uint64_t>> whole;
  for (const RecordedStep& step : steps) whole.push_back({step.start, step.end});
  std::sort(whole.begin(), whole.end());
  std::array<std::uint64_t, lane_names.size()> covered_until{};
  for (const TraceRecord* span : spans) {
    const auto next = std::upper_bound(whole.begin(), whole.end(), std::pair(span->start, ~std::uint64_t{0}));
    if (next != whole.begin() && span->start < std::prev(next)->second) continue;
    std::uint64_t& covered = covered_until[static_cast<std::size_t>(span->lane)];
    if (span->start < covered) continue;
    covered = span->start + span->duration;
    BetweenSteps& entry = between[file.header.names[span->name]];
    entry.count += 1;
    entry.total_s += axis.seconds(span->duration);
  }
}

RankReport report_rank(const TraceHeader& header, const MeasuredRank& measured, const Kinds& kinds,
                       const std::optional<std::vector<double>>& predicted) {
  RankReport rank;
  rank.rank = header.rank;
  rank.coordinate = header.coordinate;
  rank.step = {mean_of(measured.step_times), median_of(measured.step_times), {}};
  const std::size_t kind_count = kinds.names().size();
  const std::size_t step_count = measured.step_times.size();
  const auto times_of = [&](std::size_t kind) {
    std::vector<double> times(step_count);
    for (std::size_t s = 0; s < step_count; ++s) times[s] = measured.kind_times[s][kind];
    return times;
  };
  if (predicted) rank.step.predicted = std::accumulate(predicted->begin(), predicted->end(), 0.0);
  std::array<std::vector<double>, step_part_names.size()> part_times;
  part_times.fill(std::vector<double>(step_count, 0.0));
  std::array<double, step_part_names.size()> part_predictions{};
  for (std::size_t kind = 0; kind <= kind_count; ++kind) {
    const std::vector<double> times = times_of(kind);
    const StepPart part = kind == kind_count ? StepPart::idle : step_part_of(kinds.names()[kind]);
    const auto p = static_cast<std::size_t>(part);
    for (std::size_t s = 0; s < step_count; ++s) part_times[p][s] += times[s];
    Timing timing{mean_of(times), median_of(times), {}};
    if (predicted) {
      timing.predicted = (*predicted)[kind];
      part_predictions[p] += (*predicted)[kind];
    }
    if (kind < kind_count) rank.kinds[kinds.names()[kind]] = timing;
  }
  for (std::size_t p = 0; p < part_times.size(); ++p) {
    rank.parts[p] = {mean_of(part_times[p]), median_of(part_times[p]), {}};
    if (predicted) rank.parts[p].predicted = part_predictions[p];
  }
  return rank;
}

/// Mean over the ranks; the prediction over those that the plan knows.
template <typename Select>
Timing mean_over_ranks(const std::vector<RankReport>& ranks, Select select) {
  std::vector<double> means;
  std::vector<double> medians;
  std::vector<double> predictions;
  for (const RankReport& rank : ranks) {
    const Timing& timing = select(rank);
    means.push_back(timing.mean);
    medians.push_back(timing.median);
    if (timing.predicted) predictions.push_back(*timing.predicted);
  }
  Timing mean{mean_of(means), median_of(medians), {}};
  if (!predictions.empty()) mean.predicted = mean_of(predictions);
  return mean;
}

}  // namespace

TraceReport build_trace_report(const RunTraces& traces, const std::optional<PlanPrediction>& plan,
                               std::optional<std::uint32_t> only_step) {
  PACELINE_CHECK(!traces.ranks.empty());
  const TraceFile& first = traces.ranks.front();
  TraceReport report;
  report.run_id = first.header.run_id;
  report.trace_id = first.header.trace_id.hex();
  report.world_size = first.header.world_size;
  report.notices = traces.notices;
  if (!traces.earlier.empty()) {
    report.notices.push_back("the run was resumed: the report covers its newest attempt");
  }

  std::vector<std::vector<RecordedStep>> recorded;
  for (const TraceFile& file : traces.ranks) recorded.push_back(find_steps(file));
  choose_steps(report, common_steps(recorded), only_step, first.path.parent_path().string());

  // All kinds first, so that every rank's table has the same columns.
  Kinds kinds;
  std::vector<TimeAxis> axes;
  std::vector<std::vector<const RecordedStep*>> chosen;
  for (std::size_t r = 0; r < traces.ranks.size(); ++r) {
    axes.emplace_back(traces.ranks[r]);
    auto& steps = chosen.emplace_back();
    for (const RecordedStep& step : recorded[r]) {
      if (!std::binary_search(report.steps.begin(), report.steps.end(), step.step)) continue;
      steps.push_back(&step);
      whole_actions(step, traces.ranks[r], axes[r], kinds);
    }
  }
  if (plan) {
    for (const PlannedPart& part : plan->parts) kinds.number_of(part.kind);
  }

  std::map<std::string, BetweenSteps> between;
  for (std::size_t r = 0; r < traces.ranks.size(); ++r) {
    const TraceFile& file = traces.ranks[r];
    MeasuredRank measured;
    for (const RecordedStep* step : chosen[r]) {
      const double length = axes[r].seconds(step->duration());
      measured.step_times.push_back(length);
      measured.kind_times.push_back(
          exposed_times(whole_actions(*step, file, axes[r], kinds), length, kinds.names().size()));
    }
    std::optional<std::vector<double>> predicted;
    if (plan) predicted = predicted_times(*plan, file.header.rank, kinds);
    report.planned = report.planned || predicted.has_value();
    report.ranks.push_back(report_rank(file.header, measured, kinds, predicted));
    add_operations(report, file, axes[r], chosen[r], plan ? &*plan : nullptr);
    add_between_steps(between, file, axes[r], recorded[r]);
  }
  for (auto& [kind, entry] : between) {
    const auto ranks = static_cast<double>(traces.ranks.size());
    report.between_steps.push_back({kind, entry.count / ranks, entry.total_s / ranks});
  }

  report.step = mean_over_ranks(report.ranks, [](const RankReport& rank) -> const Timing& { return rank.step; });
  for (std::size_t p = 0; p < report.parts.size(); ++p) {
    report.parts[p] = mean_over_ranks(report.ranks, [p](const RankReport& rank) -> const Timing& {
      return rank.parts[p];
    });
  }
  if (!plan) {
    report.notices.push_back("the run has no plan.json, so there is nothing to compare with");
  } else if (!report.planned) {
    report.notices.push_back("plan.json predicts nothing for these ranks, so there is nothing to compare with");
  }
  return report;
}

}  // namespace paceline
