#include "paceline/plan/memory_model.h"

#include "paceline/base/error.h"

#include <algorithm>
#include <map>
#include <vector>

namespace paceline {
namespace {

constexpr double sample_bytes_per_token = 8 + 8 + 1;  // id, target, mask

/// Bytes of one micro-batch's pass through a stage, on top of what is there before it.
struct PassMemory {
  double kept = 0;            ///< from forward to backward; without the received input
  double forward_peak = 0;    ///< most while the forward runs
  double backward_peak = 0;   ///< most while the backward runs, with what is still kept; without the received gradient
  int forward_operation = -1; ///< at which the peak stands
  int backward_operation = -1;
};

/// Follows the values of one micro-batch through a stage's operations.
class PassTracker {
 public:
  PassTracker(const Program& program, const MicroBatch& micro_batch)
      : program_(program),
        micro_batch_(micro_batch),
        storage_(value_storage(program)),
        first_saver_(program.values.size(), -1),
        last_use_(program.values.size(), -1) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      costs_.push_back(operation_cost(program, program.operations[i], micro_batch));
      for (const int input : program.operations[i].inputs) last_use_[root(input)] = static_cast<int>(i);
      for (const int value : costs_.back().saved_values) {
        if (is_counted(value) && first_saver_[root(value)] < 0) first_saver_[root(value)] = static_cast<int>(i);
      }
    }
  }

  PassMemory track() {
    PassMemory memory;
    forward(memory);
    backward(memory);
    return memory;
  }

 private:
  std::size_t root(int value) const { return static_cast<std::size_t>(storage_[static_cast<std::size_t>(value)]); }
  /// Tokens belong to the step's samples, and the received input to its message.
  bool is_counted(int value) const {
    return program_.values[static_cast<std::size_t>(value)].kind == ValueKind::activation &&
           (program_.input < 0 || root(value) != root(program_.input));
  }
  double bytes(std::size_t value) const { return value_bytes(program_, static_cast<int>(value), micro_batch_); }

  void forward(PassMemory& memory) {
    double live = 0;
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      const Operation& operation = program_.operations[i];
      live += costs_[i].saved_extra_bytes;
      for (const int output : operation.outputs) {
        if (is_counted(output) && root(output) == static_cast<std::size_t>(output)) live += bytes(root(output));
      }
      if (live > memory.forward_peak) {
        memory.forward_peak = live;
        memory.forward_operation = static_cast<int>(i);
      }
      std::vector<std::size_t> ended;
      for (const int input : operation.inputs) {
        const std::size_t at = root(input);
        const bool is_output = program_.output >= 0 && at == root(program_.output);
        if (!is_counted(input) || last_use_[at] != static_cast<int>(i) || first_saver_[at] >= 0 || is_output) continue;
        if (std::find(ended.begin(), ended.end(), at) != ended.end()) continue;
        ended.push_back(at);
        live -= bytes(at);
      }
    }
    if (program_.output >= 0 && first_saver_[root(program_.output)] < 0) live -= bytes(root(program_.output));
    memory.kept = live;
  }

  /// Memory that holds the gradient of one or more values.
  struct GradientStorage {
    double bytes = 0;
    int holders = 0;
  };

  void backward(PassMemory& memory) {
    double live = memory.kept;
    std::map<int, int> gradient_of;  // value -> storage
    std::vector<GradientStorage> storages;
    const auto hold = [&](int value, int storage) {
      gradient_of[value] = storage;
      ++storages[static_cast<std::size_t>(storage)].holders;
    };
    const auto make = [&](int value, double size) {
      storages.push_back({.bytes = size});
      hold(value, static_cast<int>(storages.size()) - 1);
    };
    const auto take_saved = [&](int value) {  // the gradient takes the saved value's storage
      make(value, bytes(root(value)));
      first_saver_[root(value)] = -1;
    };
    if (program_.output >= 0) make(program_.output, 0);  // received
    memory.backward_peak = live;
    for (int i = static_cast<int>(program_.operations.size()) - 1; i >= 0; --i) {
      const Operation& operation = program_.operations[static_cast<std::size_t>(i)];
      const int output = operation.outputs[0], input = operation.inputs[0];
      switch (operation.kind) {
        case OperationKind::cross_entropy:
        case OperationKind::swiglu:
        case OperationKind::gelu:
          take_saved(input);
          break;
        case OperationKind::linear:
        case OperationKind::attention:
          if (!gradient_of.contains(input)) {
            make(input, bytes(static_cast<std::size_t>(input)));
            live += bytes(static_cast<std::size_t>(input));
          }
          break;
        case OperationKind::rms_norm:
        case OperationKind::layer_norm:
          if (!gradient_of.contains(input)) hold(input, gradient_of.at(output));
          break;
        case OperationKind::embedding:
          break;
        case OperationKind::add:
          hold(operation.inputs[1], gradient_of.at(output));
          hold(input, gradient_of.at(output));
          break;
        case OperationKind::add_bias:
        case OperationKind::position_embedding:
        case OperationKind::rope:
        case OperationKind::tensor_parallel_copy:
        case OperationKind::all_reduce:
          hold(input, gradient_of.at(output));
          break;
      }
      if (live > memory.backward_peak) {
        memory.backward_peak = live;
        memory.backward_operation = i;
      }
      if (const auto ended = gradient_of.find(output); ended != gradient_of.end()) {
        GradientStorage& storage = storages[static_cast<std::size_t>(ended->second)];
        if (--storage.holders == 0) live -= storage.bytes;
        gradient_of.erase(ended);
      }
      live -= costs_[static_cast<std::size_t>(i)].saved_extra_bytes;
      for (std::size_t value = 0; value < first_saver_.size(); ++value) {
        if (first_saver_[value] == i) live -= bytes(value);
      }
    }
  }

  const Program& program_;
  MicroBatch micro_batch_;
  std::vector<int> storage_;
  std::vector<int> first_saver_;  ///< by storage: smallest operation whose backward reads it; -1: none
  std::vector<int> last_use_;     ///< by storage: last operation whose forward reads it
  std::vector<OperationCost> costs_;
};

}  // namespace

StageMemory stage_memory(const TrainingStep& step, int stage) {
  const std::size_t at = static_cast<std::size_t>(stage);
  const Program& program = step.stages[at];
  const StepSettings& settings = step.settings;
  const MicroBatch micro_batch = settings.micro_batch();
  const double element = static_cast<double>(settings.element_bytes());
  const double tokens = static_cast<double>(micro_batch.tokens());
  const double boundary = tokens * static_cast<double>(settings.model.hidden_size) * element;

  StageMemory memory;
  const GradientBuckets& buckets = step.buckets[at];
  memory.gradients = static_cast<double>(buckets.elements) * element;
  memory.optimizer = 2 * memory.gradients;
  memory.parameters = memory.gradients;
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    if (std::find(buckets.order.begin(), buckets.order.end(), static_cast<int>(i)) != buckets.order.end()) continue;
    memory.parameters += static_cast<double>(program.parameters[i].elements()) * element;
  }
  const bool has_rope = std::any_of(program.operations.begin(), program.operations.end(),
                                    [](const Operation& operation) { return operation.kind == OperationKind::rope; });
  if (has_rope) {
    // Cosines and sines are computed in fp64 before they are rounded.
    const double made_in = settings.precision == "fp64" ? 0 : 8;
    memory.workspace = static_cast<double>(settings.sequence_length * settings.model.head_dim) * (element + made_in);
  }
  if (program.logits >= 0) memory.logits = value_bytes(program, program.logits, micro_batch);

  const PassMemory pass = PassTracker(program, micro_batch).track();
  double live = static_cast<double>(settings.batch.accumulation) * tokens * sample_bytes_per_token;
  int in_flight = 0;
  const std::vector<Action>& actions = step.schedule.ranks[at];
  for (std::size_t i = 0; i < actions.size(); ++i) {
    double peak = live;
    int operation = -1;
    switch (actions[i].kind) {
      case ActionKind::receive_activation:
        peak = live += boundary;
        break;
      case ActionKind::receive_gradient:
        peak = live + boundary;  // it proves that the sent activation has arrived, whose memory is freed
        break;
      case ActionKind::forward:
        ++in_flight;
        peak = live + pass.forward_peak;
        operation = pass.forward_operation;
        live += pass.kept + (program.output >= 0 ? boundary : 0);
        break;
      case ActionKind::backward:
      case ActionKind::backward_input:
        peak = live - pass.kept + pass.backward_peak;
        operation = pass.backward_operation;
        live -= pass.kept;
        if (program.output >= 0) live -= boundary;  // the received gradient
        // The received input makes room for its gradient, which is sent: the sum stays.
        break;
      default:
        break;
    }
    if (peak > memory.activations) {
      memory.activations = peak;
      memory.peak_action = static_cast<int>(i);
      memory.peak_operation = operation < 0 ? "" : program.operations[static_cast<std::size_t>(operation)].name;
      memory.peak_in_flight = in_flight;
    }
    if (actions[i].kind == ActionKind::backward || actions[i].kind == ActionKind::backward_weight) --in_flight;
  }
  return memory;
}

}  // namespace paceline
