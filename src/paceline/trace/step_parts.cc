#include "paceline/trace/step_parts.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "paceline/trace/record.h"

namespace paceline {

StepPart step_part_of(std::string_view kind) {
  if (kind == "load") return StepPart::load;
  if (kind.starts_with("forward")) return StepPart::forward;
  if (kind.starts_with("backward")) return StepPart::backward;
  if (kind.starts_with("send") || kind.starts_with("receive")) return StepPart::exchange;
  if (kind.starts_with("reduce") || kind.starts_with("gather") || kind == "wait_buckets" || kind == "count_tokens") {
    return StepPart::reduce;
  }
  if (kind == "gradient_norm") return StepPart::gradient_norm;
  if (kind == "optimizer_step") return StepPart::optimizer_step;
  if (kind == "evaluate") return StepPart::evaluate;
  if (kind == "checkpoint") return StepPart::checkpoint;
  return StepPart::other;
}

std::vector<double> exposed_times(const std::vector<TimedAction>& actions, double length, std::size_t kinds) {
  struct Edge {
    double time;
    bool begins;
    std::size_t action;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const double start = std::clamp(actions[i].start, 0.0, length);
    const double end = std::clamp(actions[i].end, 0.0, length);
    if (end <= start) continue;
    edges.push_back({start, true, i});
    edges.push_back({end, false, i});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.time < b.time; });

  // The innermost of a lane's open spans is the last: latest start, then earliest end.
  using Open = std::tuple<double, double, std::size_t>;
  std::array<std::set<Open>, lane_names.size()> open;
  std::vector<double> times(kinds + 1, 0.0);
  double now = 0;
  const auto advance_to = [&](double time) {
    std::size_t kind = kinds;
    for (const auto& lane : open) {
      if (lane.empty()) continue;
      kind = actions[std::get<2>(*lane.rbegin())].kind;
      break;
    }
    times[kind] += time - now;
    now = time;
  };
  for (const Edge& edge : edges) {
    advance_to(edge.time);
    const TimedAction& action = actions[edge.action];
    const Open key{action.start, -action.end, edge.action};
    if (edge.begins) {
      open[action.lane].insert(key);
    } else {
      open[action.lane].erase(key);
    }
  }
  advance_to(length);
  return times;
}

}  // namespace paceline
