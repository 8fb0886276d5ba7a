#include "paceline/schedule/schedule.h"

#include "paceline/base/error.h"

#include <algorithm>

namespace paceline {
namespace {

/// Writes the list of one stage: knows the neighbours, so that the orders below read as the papers' figures do.
class StageWriter {
 public:
  StageWriter(int stage, int stages, std::vector<Action>& actions) : stage_(stage), stages_(stages), actions_(actions) {}

  void forward(int micro_batch) {
    if (stage_ > 0) add({.kind = ActionKind::receive_activation, .micro_batch = micro_batch, .peer = stage_ - 1});
    add({.kind = ActionKind::forward, .micro_batch = micro_batch, .chunk = 0});
    if (stage_ + 1 < stages_) {
      add({.kind = ActionKind::send_activation,
           .micro_batch = micro_batch,
           .peer = stage_ + 1,
           .lane = Lane::communication});
    }
  }

  void backward(int micro_batch) {
    if (stage_ + 1 < stages_) {
      add({.kind = ActionKind::receive_gradient, .micro_batch = micro_batch, .peer = stage_ + 1});
    }
    add({.kind = ActionKind::backward, .micro_batch = micro_batch, .chunk = 0});
    if (stage_ > 0) {
      add({.kind = ActionKind::send_gradient,
           .micro_batch = micro_batch,
           .peer = stage_ - 1,
           .lane = Lane::communication});
    }
  }

  void once(ActionKind kind) { add({.kind = kind}); }
  void reduce_bucket(int bucket) {
    add({.kind = ActionKind::reduce_bucket, .bucket = bucket, .lane = Lane::communication});
  }

 private:
  void add(const Action& action) { actions_.push_back(action); }

  int stage_;
  int stages_;
  std::vector<Action>& actions_;
};

void write_gpipe(StageWriter& writer, int micro_batches) {
  for (int m = 0; m < micro_batches; ++m) writer.forward(m);
  for (int m = 0; m < micro_batches; ++m) writer.backward(m);
}

void write_one_forward_one_backward(StageWriter& writer, int stage, int stages, int micro_batches) {
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  for (int m = 0; m < warm_up; ++m) writer.forward(m);
  for (int m = warm_up; m < micro_batches; ++m) {
    writer.forward(m);
    writer.backward(m - warm_up);
  }
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) writer.backward(m);
}

void refuse_sizes(int stages, int micro_batches) {
  if (stages < 1) refuse("a pipeline of {} stages: needs at least 1", stages);
  if (micro_batches < 1) refuse("a step of {} micro-batches: needs at least 1", micro_batches);
}

}  // namespace

Schedule build_training_schedule(const ScheduleOptions& options) {
  refuse_sizes(options.stages, options.micro_batches);
  const std::size_t stages = static_cast<std::size_t>(options.stages);
  PACELINE_CHECK(options.buckets.empty() || options.buckets.size() == stages);
  PACELINE_CHECK(options.replicas_to_reduce.empty() || options.replicas_to_reduce.size() == stages);

  Schedule schedule{.kind = options.kind,
                    .stages = options.stages,
                    .micro_batches = options.micro_batches,
                    .training = true,
                    .buckets = options.buckets,
                    .replicas_to_reduce = options.replicas_to_reduce,
                    .ranks = std::vector<std::vector<Action>>(stages)};
  for (std::size_t stage = 0; stage < stages; ++stage) {
    StageWriter writer(static_cast<int>(stage), options.stages, schedule.ranks[stage]);
    writer.once(ActionKind::load);
    writer.once(ActionKind::count_tokens);
    if (options.kind == PipelineSchedule::gpipe) {
      write_gpipe(writer, options.micro_batches);
    } else {
      write_one_forward_one_backward(writer, static_cast<int>(stage), options.stages, options.micro_batches);
    }
    if (!options.replicas_to_reduce.empty() && options.replicas_to_reduce[stage]) {
      writer.once(ActionKind::reduce_replicas);
    }
    if (!options.buckets.empty()) {
      for (int bucket = 0; bucket < options.buckets[stage]; ++bucket) writer.reduce_bucket(bucket);
      writer.once(ActionKind::wait_buckets);
    }
    writer.once(ActionKind::gradient_norm);
    writer.once(ActionKind::optimizer_step);
  }
  return schedule;
}

Schedule build_evaluation_schedule(int stages, int micro_batches) {
  refuse_sizes(stages, micro_batches);
  Schedule schedule{.kind = PipelineSchedule::gpipe,
                    .stages = stages,
                    .micro_batches = micro_batches,
                    .training = false,
                    .ranks = std::vector<std::vector<Action>>(static_cast<std::size_t>(stages))};
  for (int stage = 0; stage < stages; ++stage) {
    StageWriter writer(stage, stages, schedule.ranks[static_cast<std::size_t>(stage)]);
    writer.once(ActionKind::load);
    for (int m = 0; m < micro_batches; ++m) writer.forward(m);
  }
  return schedule;
}

std::string action_kind_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::load: return "load";
    case ActionKind::count_tokens: return "count_tokens";
    case ActionKind::receive_activation: return "receive_activation";
    case ActionKind::send_activation: return "send_activation";
    case ActionKind::forward: return "forward";
    case ActionKind::receive_gradient: return "receive_gradient";
    case ActionKind::send_gradient: return "send_gradient";
    case ActionKind::backward: return "backward";
    case ActionKind::backward_input: return "backward_input";
    case ActionKind::backward_weight: return "backward_weight";
    case ActionKind::reduce_replicas: return "reduce_replicas";
    case ActionKind::reduce_bucket: return "reduce_bucket";
    case ActionKind::wait_buckets: return "wait_buckets";
    case ActionKind::gradient_norm: return "gradient_norm";
    case ActionKind::optimizer_step: return "optimizer_step";
    case ActionKind::evaluate: return "evaluate";
    case ActionKind::checkpoint: return "checkpoint";
  }
  return "unknown";
}

std::string action_label(const Action& action) {
  std::string label = action_kind_name(action.kind);
  if (action.micro_batch >= 0) label += fmt::format(" m{}", action.micro_batch);
  if (action.chunk > 0) label += fmt::format(" chunk {}", action.chunk);
  if (action.bucket >= 0) label += fmt::format(" {}", action.bucket);
  const bool receives =
      action.kind == ActionKind::receive_activation || action.kind == ActionKind::receive_gradient;
  if (action.peer >= 0) label += fmt::format(" {} stage {}", receives ? "from" : "to", action.peer);
  return label;
}

PipelineSchedule parse_pipeline_schedule(const std::string& name) {
  if (name == "gpipe") return PipelineSchedule::gpipe;
  if (name == "1f1b") return PipelineSchedule::one_forward_one_backward;
  refuse("pipeline schedule '{}' is not known: gpipe or 1f1b", name);
}

std::string pipeline_schedule_name(PipelineSchedule kind) {
  return kind == PipelineSchedule::gpipe ? "gpipe" : "1f1b";
}

}  // namespace paceline
