#include "paceline/plan/cost_model.h"

#include "paceline/base/error.h"

#include <algorithm>

namespace paceline {
namespace {

constexpr double norm_message_bytes = 24;  // squares, loss, and the wish to stop
constexpr double count_message_bytes = 8;

bool is_product(OperationKind kind) { return kind == OperationKind::linear; }

/// Time of one half of an operation, without messages. Nothing to do costs nothing, not even a call.
double half_s(const Program& program, const Operation& operation, const StepSettings& settings, const Place& place,
              Occupancy occupancy, Pass pass, double flops, double bytes) {
  if (flops == 0 && bytes == 0) return 0;
  const MachineProfile& profile = place.profile;
  const MicroBatch micro_batch = settings.micro_batch();
  const bool forward = pass == Pass::forward;
  double arithmetic = 0, traffic = 0;
  if (is_product(operation.kind)) {
    const Shape& shape = program.parameters[static_cast<std::size_t>(operation.parameters[0])].shape;
    if (flops > 0) {
      arithmetic = flops / profile.product_flops_per_s(settings.precision, occupancy, pass, micro_batch.tokens(), shape[1],
                                                       shape[0]);
    }
    traffic = bytes / profile.memory_bytes_per_s(occupancy);
  } else if (operation.kind == OperationKind::attention) {
    arithmetic = flops / profile.attention_flops_per_s(settings.precision, occupancy, forward, micro_batch.sequence_length,
                                                       operation.head_dim);
    traffic = bytes / profile.memory_bytes_per_s(occupancy);
  } else {
    traffic = bytes / profile.operation_bytes_per_s(operation_kind_name(operation.kind), occupancy, forward);
  }
  return std::max(arithmetic, traffic) + profile.operation_overhead_s;
}

}  // namespace

CostModel::CostModel(const TrainingStep& step, const Place& place) : step_(step), place_(place) {
  const int ranks = step.settings.parallel.layout.world_size();
  occupancy_.threads = place.threads_per_rank > 0 ? place.threads_per_rank : std::max(1, place.cores / ranks);
  occupancy_.ranks = std::clamp(place.cores / occupancy_.threads, 1, ranks);
  const Layout& layout = step.settings.parallel.layout;
  for (const Program& program : step.stages) {
    std::vector<Duration> forward, input, weight;
    for (const Operation& operation : program.operations) {
      const OperationCost cost = operation_cost(program, operation, step.settings.micro_batch());
      const auto compute = [&](Pass pass, double flops, double bytes) {
        return half_s(program, operation, step.settings, place_, occupancy_, pass, flops, bytes);
      };
      const auto messages = [&](int count, double bytes) {
        return count == 0 ? 0.0
                          : count * place_.profile.message_seconds(place_.backend, "all_reduce", layout.tp,
                                                                   layout.dp * layout.pp, bytes / count);
      };
      forward.push_back({compute(Pass::forward, cost.forward_flops, cost.forward_bytes),
                         messages(cost.forward_messages, cost.forward_message_bytes)});
      input.push_back({compute(Pass::backward_input, cost.backward_input_flops, cost.backward_input_bytes),
                       messages(cost.backward_messages, cost.backward_message_bytes)});
      weight.push_back({compute(Pass::backward_weight, cost.backward_weight_flops, cost.backward_weight_bytes), 0.0});
    }
    forward_.push_back(std::move(forward));
    backward_input_.push_back(std::move(input));
    backward_weight_.push_back(std::move(weight));
  }
}

Duration CostModel::operation(int stage, ActionKind kind, int operation) const {
  const auto at = [&](const std::vector<std::vector<Duration>>& table) {
    return table[static_cast<std::size_t>(stage)][static_cast<std::size_t>(operation)];
  };
  switch (kind) {
    case ActionKind::forward: return at(forward_);
    case ActionKind::backward_input: return at(backward_input_);
    case ActionKind::backward_weight: return at(backward_weight_);
    default: {
      PACELINE_CHECK(kind == ActionKind::backward);
      Duration both = at(backward_input_);
      both += at(backward_weight_);
      return both;
    }
  }
}

Duration CostModel::pass(int stage, ActionKind kind) const {
  Duration sum{.compute_s = place_.profile.action_overhead_s};
  const int count = static_cast<int>(step_.stages[static_cast<std::size_t>(stage)].operations.size());
  for (int i = 0; i < count; ++i) sum += operation(stage, kind, i);
  return sum;
}

double CostModel::collective_s(int ranks, double bytes) const {
  const int groups = std::max(1, step_.settings.parallel.layout.world_size() / std::max(ranks, 1));
  return place_.profile.message_seconds(place_.backend, "all_reduce", ranks, groups, bytes);
}

Duration CostModel::action(int stage, const Action& action) const {
  const Layout& layout = step_.settings.parallel.layout;
  const double element = static_cast<double>(step_.settings.element_bytes());
  const std::size_t at = static_cast<std::size_t>(stage);
  const double elements = static_cast<double>(step_.buckets[at].elements);
  const double overhead = place_.profile.action_overhead_s;
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
      return pass(stage, action.kind);
    case ActionKind::count_tokens:
      return {overhead, collective_s(layout.dp, count_message_bytes)};
    case ActionKind::reduce_replicas: {
      Duration sum{.compute_s = overhead};
      for (const Parameter& parameter : step_.stages[at].parameters) {
        for (const Block& block : parameter.blocks) {
          if (!block.trainable || !block.gradient_is_partial || block.replicas.size() < 2) continue;
          double bytes = element;
          for (const std::int64_t size : block.extent) bytes *= static_cast<double>(size);
          sum.message_s += collective_s(static_cast<int>(block.replicas.size()), bytes);
        }
      }
      return sum;
    }
    case ActionKind::gradient_norm:
      return {overhead + elements * element / place_.profile.operation_bytes_per_s("gradient_norm", occupancy_, true),
              collective_s(layout.world_size(), norm_message_bytes)};
    case ActionKind::optimizer_step:
      // AdamW reads weight, gradient and two moments and writes all but the gradient.
      return {overhead + 7 * elements * element / place_.profile.operation_bytes_per_s("optimizer_step", occupancy_, true), 0};
    default:
      return {overhead, 0};
  }
}

double CostModel::transfer_s() const {
  const StepSettings& settings = step_.settings;
  const double bytes = static_cast<double>(settings.micro_batch().tokens() * settings.model.hidden_size *
                                           settings.element_bytes());
  return place_.profile.message_seconds(place_.backend, "send", 2, settings.parallel.layout.dp * settings.parallel.layout.tp,
                                        bytes);
}

double CostModel::bucket_s(int stage, int bucket) const {
  const auto [begin, end] = step_.buckets[static_cast<std::size_t>(stage)].buckets[static_cast<std::size_t>(bucket)];
  return collective_s(step_.settings.parallel.layout.dp,
                      static_cast<double>((end - begin) * step_.settings.element_bytes()));
}

double CostModel::bucket_ready_share(int stage, int bucket) const {
  const int completed_by =
      step_.buckets[static_cast<std::size_t>(stage)].completed_by[static_cast<std::size_t>(bucket)];
  const int count = static_cast<int>(step_.stages[static_cast<std::size_t>(stage)].operations.size());
  double before = 0, all = 0;
  for (int i = count - 1; i >= 0; --i) {
    const double seconds = operation(stage, ActionKind::backward, i).total();
    all += seconds;
    if (i >= completed_by) before += seconds;
  }
  return completed_by < 0 || all <= 0 ? 1.0 : before / all;
}

}  // namespace paceline
