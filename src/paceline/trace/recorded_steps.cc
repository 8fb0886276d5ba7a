#include "paceline/trace/recorded_steps.h"

namespace paceline {
namespace {

bool is_step(const TraceRecord& record) {
  return record.kind == RecordKind::span && record.name == step_name && record.lane == TraceLane::compute &&
         record.action == no_action;
}

}  // namespace

std::vector<RecordedStep> find_steps(const TraceFile& file) {
  std::map<std::uint32_t, RecordedStep> steps;
  for (const TraceRecord& record : file.records) {
    if (is_step(record)) steps[record.step] = {record.step, record.start, record.start + record.duration, {}, {}};
  }
  for (const TraceRecord& record : file.records) {
    if (record.kind != RecordKind::span || is_step(record)) continue;
    const auto found = steps.find(record.step);
    if (found == steps.end() || record.start < found->second.start || record.start >= found->second.end) continue;
    found->second.spans.push_back(&record);
    if (record.action != no_action && record.operation == no_operation) {
      found->second.action_kinds[record.action] = record.name;
    }
  }
  std::vector<RecordedStep> ascending;
  ascending.reserve(steps.size());
  for (auto& [number, step] : steps) ascending.push_back(std::move(step));
  return ascending;
}

}  // namespace paceline
