#include "paceline/arch/operation_cost.h"

#include "paceline/base/error.h"

#include <numeric>
#include <set>

namespace paceline {
namespace {

constexpr double token_bytes = 8.0;  // ids are 64-bit integers

}  // namespace

double value_bytes(const Program& program, int value, const MicroBatch& micro_batch) {
  const Value& described = program.values.at(static_cast<std::size_t>(value));
  const double tokens = static_cast<double>(micro_batch.tokens());
  const double element = static_cast<double>(micro_batch.element_bytes);
  switch (described.kind) {
    case ValueKind::tokens: return tokens * token_bytes;
    case ValueKind::activation: return tokens * static_cast<double>(described.width) * element;
    case ValueKind::loss: return element;
  }
  return 0.0;
}

OperationCost operation_cost(const Program& program, const Operation& operation, const MicroBatch& micro_batch) {
  const double tokens = static_cast<double>(micro_batch.tokens());
  const double element = static_cast<double>(micro_batch.element_bytes);
  const double length = static_cast<double>(micro_batch.sequence_length);
  const auto input = [&](std::size_t i) { return value_bytes(program, operation.inputs[i], micro_batch); };
  const auto output = [&] { return value_bytes(program, operation.outputs[0], micro_batch); };
  const auto parameter = [&](std::size_t i) -> const Parameter& {
    return program.parameters.at(static_cast<std::size_t>(operation.parameters[i]));
  };
  const auto parameter_bytes = [&](std::size_t i) { return static_cast<double>(parameter(i).elements()) * element; };

  OperationCost cost;
  for (std::size_t i = 0; i < operation.parameters.size(); ++i) {
    cost.parameters += static_cast<double>(parameter(i).elements());
  }
  switch (operation.kind) {
    case OperationKind::embedding:
      cost.forward_bytes = input(0) + 2 * output();
      if (parameter(0).trainable()) {
        cost.backward_input_bytes = input(0) + 3 * output();  // dy, and the table's rows read and written
        cost.saved_values = {operation.inputs[0]};
      }
      break;
    case OperationKind::position_embedding: {
      const double rows = length * static_cast<double>(parameter(0).shape[1]) * element;
      cost.forward_bytes = 2 * output() + rows;
      if (parameter(0).trainable()) cost.backward_input_bytes = output() + 2 * rows;
      break;
    }
    case OperationKind::rms_norm:
    case OperationKind::layer_norm: {
      const double statistics = operation.kind == OperationKind::rms_norm ? 1 : 2;
      cost.saved_values = {operation.inputs[0]};
      cost.saved_extra_bytes = statistics * tokens * element;
      cost.forward_bytes = 2 * output() + cost.saved_extra_bytes;
      cost.backward_input_bytes = 4 * output() + cost.saved_extra_bytes;  // dy, x, and dx added to what is there
      break;
    }
    case OperationKind::linear: {
      const double product = 2 * tokens * static_cast<double>(parameter(0).elements());
      const double traffic = input(0) + output() + parameter_bytes(0);
      cost.forward_flops = product;
      cost.forward_bytes = traffic;
      cost.backward_input_flops = product;
      cost.backward_input_bytes = traffic;
      if (parameter(0).trainable()) {
        cost.backward_weight_flops = product;
        cost.backward_weight_bytes = traffic + parameter_bytes(0);  // added to what is there
        cost.saved_values = {operation.inputs[0]};
      }
      if (operation.parameters.size() > 1 && parameter(1).trainable()) cost.backward_weight_bytes += output();
      break;
    }
    case OperationKind::add_bias:
      cost.forward_bytes = 2 * output();
      if (parameter(0).trainable()) cost.backward_input_bytes = output();
      break;
    case OperationKind::rope: {
      const double rotated = static_cast<double>((operation.heads + operation.kv_heads) * operation.head_dim);
      cost.forward_bytes = cost.backward_input_bytes = 2 * tokens * rotated * element;
      break;
    }
    case OperationKind::attention:
      cost.forward_flops = 2 * tokens * length * static_cast<double>(operation.heads * operation.head_dim);
      cost.backward_input_flops = 2 * cost.forward_flops;
      cost.saved_values = {operation.inputs[0], operation.outputs[0]};
      cost.saved_extra_bytes = static_cast<double>(operation.heads) * tokens * element;
      cost.forward_bytes = input(0) + output() + cost.saved_extra_bytes;
      cost.backward_input_bytes = 2 * input(0) + 2 * output() + cost.saved_extra_bytes;
      break;
    case OperationKind::swiglu:
      cost.forward_bytes = input(0) + output();
      cost.backward_input_bytes = 2 * input(0) + output();
      cost.saved_values = {operation.inputs[0]};
      break;
    case OperationKind::gelu:
      cost.forward_bytes = input(0) + output();
      cost.backward_input_bytes = input(0) + 2 * output();
      cost.saved_values = {operation.inputs[0]};
      break;
    case OperationKind::add:
      cost.forward_bytes = 3 * output();  // its backward hands one gradient to both inputs
      break;
    case OperationKind::cross_entropy:
      // The maximum, the exponentials stored over the logits, and their scaling to the gradient.
      cost.forward_bytes = 5 * input(0);
      cost.saved_values = {operation.inputs[0]};
      if (program.values.at(static_cast<std::size_t>(operation.inputs[0])).width < operation.vocab_size) {
        cost.forward_messages = 2;  // rows' maxima; then their sums of exponentials and targets' logits
        cost.forward_message_bytes = 3 * tokens * element;
      }
      break;
    case OperationKind::tensor_parallel_copy:
      cost.backward_messages = 1;
      cost.backward_message_bytes = output();
      break;
    case OperationKind::all_reduce:
      cost.forward_messages = 1;
      cost.forward_message_bytes = output();
      break;
  }
  return cost;
}

std::vector<int> value_storage(const Program& program) {
  std::vector<int> storage(program.values.size());
  std::iota(storage.begin(), storage.end(), 0);
  for (const Operation& operation : program.operations) {
    if (!operation.in_place) continue;
    storage[static_cast<std::size_t>(operation.outputs[0])] = storage[static_cast<std::size_t>(operation.inputs[0])];
  }
  return storage;
}

double saved_bytes(const Program& program, const MicroBatch& micro_batch) {
  const std::vector<int> storage = value_storage(program);
  std::set<int> counted;
  double bytes = 0.0;
  for (const Operation& operation : program.operations) {
    const OperationCost cost = operation_cost(program, operation, micro_batch);
    bytes += cost.saved_extra_bytes;
    for (const int value : cost.saved_values) {
      const int root = storage[static_cast<std::size_t>(value)];
      if (counted.insert(root).second) bytes += value_bytes(program, root, micro_batch);
    }
  }
  return bytes;
}

double model_flops_per_token(const ModelConfig& model, std::int64_t sequence_length) {
  const std::int64_t query = model.num_attention_heads * model.head_dim;
  const std::int64_t key = model.num_key_value_heads * model.head_dim;
  const std::int64_t matrices = model.family == ModelFamily::llama ? 3 : 2;  // gate, up, down; or up, down
  const std::int64_t layer =
      model.hidden_size * (2 * query + 2 * key) + matrices * model.hidden_size * model.intermediate_size;
  const double products = static_cast<double>(model.num_hidden_layers) * static_cast<double>(layer) +
                          static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
  const double attention = static_cast<double>(model.num_hidden_layers) * static_cast<double>(sequence_length) *
                           static_cast<double>(query);
  return 6 * products + 6 * attention;
}

}  // namespace paceline
