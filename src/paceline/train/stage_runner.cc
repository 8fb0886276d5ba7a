#include "paceline/train/stage_runner.h"

#include "paceline/arch/operation_cost.h"
#include "paceline/base/error.h"
#include "paceline/ops/add.h"
#include "paceline/ops/attention.h"
#include "paceline/ops/cross_entropy.h"
#include "paceline/ops/embedding.h"
#include "paceline/ops/gelu.h"
#include "paceline/ops/layer_norm.h"
#include "paceline/ops/linear.h"
#include "paceline/ops/rms_norm.h"
#include "paceline/ops/swiglu.h"

#include <ATen/ops/empty_like.h>

#include <limits>

namespace paceline {

class StageRunner::Pass {
 public:
  MicroBatchData data;
  std::vector<at::Tensor> values;                   ///< by value
  std::vector<at::Tensor> gradients;                ///< by value, while the backward runs
  std::vector<std::vector<at::Tensor>> statistics;  ///< by operation: reciprocal deviations, log-sum-exps
  double loss_sum = 0;
  struct Deferred {
    int operation;
    at::Tensor dy, x;
  };
  std::vector<Deferred> deferred;  ///< products whose weight gradient waits for backward_weight
};

namespace {

/// Adds up rows over the tensor group, for the vocabulary-parallel cross-entropy.
class GroupRowReducer : public RowReducer {
 public:
  explicit GroupRowReducer(Communicator& group) : group_(group) {}
  void max(at::Tensor& rows) override { group_.all_reduce(rows, ReduceOp::max); }
  void sum(at::Tensor& rows) override { group_.all_reduce(rows, ReduceOp::sum); }

 private:
  Communicator& group_;
};

/// Whether nobody else holds this tensor's memory, so that it may be written.
bool is_exclusive(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

GeluKind gelu_kind(const Operation& operation) {
  return operation.activation == "gelu_new" ? GeluKind::tanh : GeluKind::erf;
}

}  // namespace

void StageRunner::PassDeleter::operator()(Pass* pass) const { delete pass; }

StageRunner::StageRunner(const Program& program, ModelState& state, Communicator* tensor_group, std::int64_t sequence_length,
                         MemoryAccount& account)
    : program_(program),
      state_(state),
      tensor_group_(tensor_group),
      account_(account),
      last_forward_use_(program.values.size(), -1),
      first_saved_use_(program.values.size(), -1),
      gradient_written_(program.parameters.size(), false) {
  const AccountScope scope(account_, MemoryClass::workspace);
  bool has_rope = false;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    has_rope = has_rope || operation.kind == OperationKind::rope;
    for (const int input : operation.inputs) last_forward_use_[input] = static_cast<int>(i);
    for (const int saved : operation_cost(program, operation, {}).saved_values) {
      if (first_saved_use_[saved] < 0) first_saved_use_[saved] = static_cast<int>(i);
    }
  }
  if (has_rope) {
    const ModelConfig& model = program.model;
    rope_ = rope_tables(rope_frequencies(model.head_dim, model.rope_theta, model.rope_scaling), sequence_length,
                        state.flat_weights.scalar_type());
  }
}

StageRunner::~StageRunner() = default;

at::Tensor StageRunner::take_output(Pass& pass) { return std::move(pass.values.back()); }
double StageRunner::loss_sum(const Pass& pass) { return pass.loss_sum; }

void StageRunner::begin_step() { gradient_written_.assign(gradient_written_.size(), false); }

void StageRunner::finish_gradients() {
  for (std::size_t i = 0; i < gradient_written_.size(); ++i) {
    if (!gradient_written_[i] && state_.gradient(static_cast<int>(i)).defined()) state_.gradient(static_cast<int>(i)).zero_();
  }
}

StageRunner::PassHandle StageRunner::forward(const MicroBatchData& data, const at::Tensor& input, double loss_scale,
                                             const PassObserver& observer) {
  PassHandle pass(new Pass);
  pass->data = data;
  pass->values.resize(program_.values.size() + 1);
  if (program_.input >= 0) pass->values[program_.input] = input;
  run_forward(*pass, Mode::train, loss_scale, false, observer);
  return pass;
}

StageRunner::Evaluation StageRunner::evaluate(const MicroBatchData& data, const at::Tensor& input, bool keep_logits,
                                              const PassObserver& observer) {
  Pass pass;
  pass.data = data;
  pass.values.resize(program_.values.size() + 1);
  if (program_.input >= 0) pass.values[program_.input] = input;
  run_forward(pass, Mode::evaluate, 0, keep_logits, observer);
  Evaluation result{.output = pass.values.back(), .loss_sum = pass.loss_sum};
  if (keep_logits && program_.logits >= 0) result.logits = pass.values[program_.logits];
  return result;
}

void StageRunner::run_forward(Pass& pass, Mode mode, double loss_scale, bool keep_logits, const PassObserver& observer) {
  const AccountScope scope(account_, MemoryClass::activations);
  pass.statistics.resize(program_.operations.size());
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const int index = static_cast<int>(i);
    if (observer.before) observer.before(index);
    forward_operation(pass, index, mode, loss_scale);
    for (const int input : program_.operations[i].inputs) {
      const bool is_saved = mode == Mode::train && first_saved_use_[input] >= 0;
      const bool is_kept = keep_logits && input == program_.logits;
      if (last_forward_use_[input] == index && !is_saved && !is_kept) pass.values[input].reset();
    }
    if (mode == Mode::evaluate) pass.statistics[i].clear();
    if (observer.after) observer.after(index);
  }
  if (program_.output >= 0) {
    // The output leaves through the last slot: whoever sends it holds it; the stage itself does not need it again.
    pass.values.back() = pass.values[program_.output];
    if (mode == Mode::evaluate || first_saved_use_[program_.output] < 0) pass.values[program_.output].reset();
  }
}

void StageRunner::forward_operation(Pass& pass, int index, Mode mode, double loss_scale) {
  const Operation& operation = program_.operations[index];
  std::vector<at::Tensor>& values = pass.values;
  const auto input = [&](std::size_t i) -> at::Tensor& { return values[operation.inputs[i]]; };
  const auto weight = [&](std::size_t i) {
    return i < operation.parameters.size() ? state_.weight(operation.parameters[i]) : at::Tensor();
  };
  at::Tensor& result = values[operation.outputs[0]];
  switch (operation.kind) {
    case OperationKind::embedding:
      result = embedding_forward(pass.data.tokens, weight(0), operation.vocab_begin);
      break;
    case OperationKind::position_embedding:
      result = position_embedding_forward(input(0), weight(0));
      break;
    case OperationKind::rms_norm: {
      RmsNormOutput out = rms_norm_forward(input(0), weight(0), operation.epsilon);
      result = std::move(out.y);
      pass.statistics[index] = {std::move(out.rstd)};
      break;
    }
    case OperationKind::layer_norm: {
      LayerNormOutput out = layer_norm_forward(input(0), weight(0), weight(1), operation.epsilon);
      result = std::move(out.y);
      pass.statistics[index] = {std::move(out.mean), std::move(out.rstd)};
      break;
    }
    case OperationKind::linear:
      result = linear_forward(input(0), weight(0), weight(1));
      break;
    case OperationKind::add_bias:
      add_bias_forward(input(0), weight(0));
      result = input(0);
      break;
    case OperationKind::rope:
      rope_forward(input(0), *rope_, operation.heads, operation.kv_heads);
      result = input(0);
      break;
    case OperationKind::attention: {
      AttentionOutput out = attention_forward(input(0), operation.heads, operation.kv_heads);
      result = std::move(out.y);
      pass.statistics[index] = {std::move(out.logsumexp)};
      break;
    }
    case OperationKind::swiglu:
      result = swiglu_forward(input(0));
      break;
    case OperationKind::gelu:
      result = gelu_forward(input(0), gelu_kind(operation));
      break;
    case OperationKind::add:
      result = add_forward(input(0), input(1));
      break;
    case OperationKind::cross_entropy: {
      const CrossEntropyTargets targets{.targets = pass.data.targets, .mask = pass.data.mask,
                                        .first_column = operation.vocab_begin, .vocabulary = operation.vocab_size};
      std::optional<GroupRowReducer> reducer;
      if (tensor_group_ != nullptr) reducer.emplace(*tensor_group_);
      RowReducer* rows = reducer ? &*reducer : nullptr;
      pass.loss_sum = mode == Mode::train ? cross_entropy_forward_backward(input(0), targets, loss_scale, rows)
                                          : cross_entropy_forward(input(0), targets, rows);
      break;
    }
    case OperationKind::tensor_parallel_copy:
      result = input(0);
      break;
    case OperationKind::all_reduce: {
      const AccountScope scope(account_, MemoryClass::communication);
      tensor_group_->all_reduce(input(0), ReduceOp::sum);
      result = input(0);
      break;
    }
  }
}

at::Tensor StageRunner::backward(PassHandle pass, at::Tensor output_gradient, const PassObserver& observer) {
  return run_backward(*pass, std::move(output_gradient), true, observer);
}

at::Tensor StageRunner::backward_input(Pass& pass, at::Tensor output_gradient, const PassObserver& observer) {
  return run_backward(pass, std::move(output_gradient), false, observer);
}

void StageRunner::backward_weight(PassHandle pass, const PassObserver& observer) {
  const AccountScope scope(account_, MemoryClass::activations);
  for (Pass::Deferred& product : pass->deferred) {
    if (observer.before) observer.before(product.operation);
    weight_gradient(program_.operations[product.operation], product.dy, product.x);
    if (observer.after) observer.after(product.operation);
    product = {};
  }
}

at::Tensor StageRunner::run_backward(Pass& pass, at::Tensor output_gradient, bool with_weights,
                                     const PassObserver& observer) {
  const AccountScope scope(account_, MemoryClass::activations);
  pass.gradients.resize(program_.values.size());
  pass.values.back().reset();
  if (program_.output >= 0) pass.gradients[program_.output] = std::move(output_gradient);
  for (int index = static_cast<int>(program_.operations.size()) - 1; index >= 0; --index) {
    if (observer.before) observer.before(index);
    backward_operation(pass, index, with_weights);
    const Operation& operation = program_.operations[index];
    for (const int output : operation.outputs) pass.gradients[output].reset();
    pass.statistics[index].clear();
    for (const auto* values : {&operation.inputs, &operation.outputs}) {
      for (const int value : *values) {
        if (first_saved_use_[value] == index) pass.values[value].reset();
      }
    }
    if (observer.after) observer.after(index);
  }
  at::Tensor input_gradient;
  if (program_.input >= 0) input_gradient = std::move(pass.gradients[program_.input]);
  pass.gradients.clear();
  return input_gradient;
}

at::Tensor StageRunner::gradient_target(const Operation& operation, std::size_t i, bool* accumulate, bool adds_only) {
  const int parameter = operation.parameters[i];
  const at::Tensor& gradient = state_.gradient(parameter);
  if (!gradient.defined()) {
    *accumulate = false;
    return at::empty_like(state_.weight(parameter));
  }
  if (adds_only && !gradient_written_[parameter]) gradient.zero_();
  *accumulate = gradient_written_[parameter];
  gradient_written_[parameter] = true;
  return gradient;
}

void StageRunner::weight_gradient(const Operation& operation, const at::Tensor& dy, const at::Tensor& x) {
  const bool has_bias = operation.parameters.size() == 2;
  bool accumulate = false;
  const bool trains_weight = state_.gradient(operation.parameters[0]).defined();
  const bool trains_bias = has_bias && state_.gradient(operation.parameters[1]).defined();
  if (trains_weight && (!has_bias || !trains_bias)) {
    const at::Tensor target = gradient_target(operation, 0, &accumulate, false);
    linear_backward_weight(dy, x, target, {}, accumulate);
  } else if (trains_weight) {
    const at::Tensor bias_target = gradient_target(operation, 1, &accumulate, false);
    const at::Tensor target = gradient_target(operation, 0, &accumulate, false);
    linear_backward_weight(dy, x, target, bias_target, accumulate);
  } else if (trains_bias) {
    const at::Tensor bias_target = gradient_target(operation, 1, &accumulate, false);
    add_bias_backward(dy, bias_target, accumulate);
  }
}

void StageRunner::backward_operation(Pass& pass, int index, bool with_weights) {
  const Operation& operation = program_.operations[index];
  std::vector<at::Tensor>& gradients = pass.gradients;
  const auto saved = [&](std::size_t i) -> at::Tensor& { return pass.values[operation.inputs[i]]; };
  const auto weight = [&](std::size_t i) { return state_.weight(operation.parameters[i]); };
  at::Tensor& dy = gradients[operation.outputs[0]];
  at::Tensor& dx = gradients[operation.inputs[0]];
  const std::vector<at::Tensor>& statistics = pass.statistics[index];
  bool accumulate = false;

  // Where a norm writes its input's gradient: into the residual stream's, in place if nobody else holds it.
  const auto norm_input_gradient = [&](bool* accumulates) {
    *accumulates = dx.defined();
    if (!dx.defined()) dx = is_exclusive(dy) ? dy : at::empty_like(dy);
    else if (!is_exclusive(dx)) dx = dx.clone();
    return dx;
  };

  switch (operation.kind) {
    case OperationKind::cross_entropy:
      dx = std::move(pass.values[operation.inputs[0]]);  // the forward left the gradient in the logits' storage
      break;
    case OperationKind::linear: {
      at::Tensor product_gradient = dy;
      if (with_weights) {
        weight_gradient(operation, product_gradient, saved(0));
      } else {
        pass.deferred.push_back({index, product_gradient, saved(0)});
      }
      at::Tensor input_gradient = linear_backward_input(product_gradient, weight(0));
      if (!dx.defined()) {
        dx = std::move(input_gradient);
      } else {
        add_into(input_gradient, dx);
        dx = std::move(input_gradient);
      }
      break;
    }
    case OperationKind::rms_norm: {
      const at::Tensor weight_target = gradient_target(operation, 0, &accumulate, false);
      bool adds = false;
      const at::Tensor target = norm_input_gradient(&adds);
      rms_norm_backward(dy, saved(0), statistics[0], weight(0), target, adds, weight_target, accumulate);
      break;
    }
    case OperationKind::layer_norm: {
      bool accumulate_weight = false;
      const at::Tensor weight_target = gradient_target(operation, 0, &accumulate_weight, false);
      const at::Tensor bias_target = gradient_target(operation, 1, &accumulate, false);
      bool adds = false;
      const at::Tensor target = norm_input_gradient(&adds);
      layer_norm_backward(dy, saved(0), statistics[0], statistics[1], weight(0), target, adds, weight_target, bias_target,
                          accumulate_weight);
      break;
    }
    case OperationKind::add_bias: {
      const at::Tensor target = gradient_target(operation, 0, &accumulate, false);
      add_bias_backward(dy, target, accumulate);
      dx = dy;
      break;
    }
    case OperationKind::attention: {
      const at::Tensor dqkv = at::empty_like(saved(0));
      attention_backward(dy, saved(0), {pass.values[operation.outputs[0]], statistics[0]}, operation.heads,
                         operation.kv_heads, dqkv);
      dx = dqkv;
      break;
    }
    case OperationKind::rope:
      rope_backward(dy, *rope_, operation.heads, operation.kv_heads);
      dx = dy;
      break;
    case OperationKind::swiglu: {
      dx = std::move(saved(0));
      swiglu_backward(dy, dx, dx);
      break;
    }
    case OperationKind::gelu: {
      dx = std::move(saved(0));
      gelu_backward(dy, dx, gelu_kind(operation), dx);
      break;
    }
    case OperationKind::add: {
      at::Tensor& db = gradients[operation.inputs[1]];
      PACELINE_CHECK(!dx.defined() && !db.defined());
      dx = dy;
      db = dy;
      break;
    }
    case OperationKind::embedding:
      if (state_.gradient(operation.parameters[0]).defined()) {
        const at::Tensor target = gradient_target(operation, 0, &accumulate, true);
        embedding_backward(dy, pass.data.tokens, operation.vocab_begin, target);
      }
      break;
    case OperationKind::position_embedding:
      if (state_.gradient(operation.parameters[0]).defined()) {
        const at::Tensor target = gradient_target(operation, 0, &accumulate, true);
        position_embedding_backward(dy, target);
      }
      dx = dy;
      break;
    case OperationKind::tensor_parallel_copy: {
      const AccountScope scope(account_, MemoryClass::communication);
      tensor_group_->all_reduce(dy, ReduceOp::sum);
      PACELINE_CHECK(!dx.defined());
      dx = dy;
      break;
    }
    case OperationKind::all_reduce:
      dx = dy;
      break;
  }
}

}  // namespace paceline
