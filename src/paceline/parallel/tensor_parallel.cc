#include "paceline/base/error.h"
#include "paceline/parallel/rank_program.h"

#include <map>
#include <set>

namespace paceline {
namespace {

/// The part [first, first + count) of a block's local rows, placed at local row `row`.
Block rows_of(Block block, std::int64_t first, std::int64_t count, std::int64_t row) {
  const std::size_t dimension = block.extent.size() == 2 && block.transposed ? 1 : 0;
  block.begin[dimension] += first;
  block.extent[dimension] = count;
  block.row = row;
  return block;
}

/// The part [first, first + count) of a block's local columns.
Block columns_of(Block block, std::int64_t first, std::int64_t count) {
  const std::size_t dimension = block.transposed ? 0 : 1;
  block.begin[dimension] += first;
  block.extent[dimension] = count;
  return block;
}

std::string dividing_degrees(std::int64_t units) {
  std::string text;
  for (std::int64_t degree = 1; degree <= units; ++degree) {
    if (units % degree == 0) text += (text.empty() ? "" : ", ") + std::to_string(degree);
  }
  return text;
}

class TensorParallelPass {
 public:
  TensorParallelPass(const Program& whole, int degree, int rank) : program_(whole), degree_(degree), rank_(rank) {}

  Program run() {
    check_heads();
    for (const Operation& operation : program_.operations) split_parameters(operation);
    for (Parameter& parameter : program_.parameters) {
      for (Block& block : parameter.blocks) {
        if (block.replicas.empty()) {
          for (int rank = 0; rank < degree_; ++rank) block.replicas.push_back(rank);
        }
      }
    }
    if (degree_ > 1) rewrite_operations();
    return std::move(program_);
  }

 private:
  void check_heads() const {
    const ModelConfig& model = program_.model;
    const std::int64_t heads = model.num_attention_heads, kv_heads = model.num_key_value_heads;
    if (heads % degree_ != 0) {
      refuse("parallel.tp = {} does not divide the model's {} attention heads: tp may be {}", degree_, heads,
             dividing_degrees(heads));
    }
    if (kv_heads % degree_ != 0 && degree_ % kv_heads != 0) {
      refuse("parallel.tp = {} neither divides the model's {} key/value heads nor is a multiple of them: tp may be {}", degree_,
             kv_heads, dividing_degrees(kv_heads));
    }
    if (model.intermediate_size % degree_ != 0) {
      refuse("parallel.tp = {} does not divide model.intermediate_size {}: tp may be {}", degree_, model.intermediate_size,
             dividing_degrees(model.intermediate_size));
    }
  }

  void split_parameters(const Operation& operation) {
    for (const int index : operation.parameters) {
      if (!done_.insert(index).second) continue;  // a tied table is split once
      Parameter& parameter = program_.parameters[index];
      switch (operation.split) {
        case Split::none: break;
        case Split::column: split_rows(parameter); break;
        case Split::row:
          if (parameter.shape.size() == 2) split_columns(parameter);
          break;  // the bias stays whole: it is added after the sum
        case Split::vocabulary: split_vocabulary(parameter); break;
      }
    }
  }

  void split_rows(Parameter& parameter) {
    std::int64_t row = 0;
    for (Block& block : parameter.blocks) {
      const std::int64_t rows = local_rows(block);
      if (block.units % degree_ == 0) {
        const std::int64_t part = rows / degree_;
        block = rows_of(block, part * rank_, part, row);
        block.replicas = {rank_};
      } else {  // fewer units than ranks: neighbouring ranks hold the same one
        const int sharers = degree_ / static_cast<int>(block.units);
        const std::int64_t part = rows / block.units;
        const int unit = rank_ / sharers;
        block = rows_of(block, part * unit, part, row);
        block.replicas.clear();
        for (int rank = unit * sharers; rank < (unit + 1) * sharers; ++rank) block.replicas.push_back(rank);
        block.gradient_is_partial = true;
      }
      row += local_rows(block);
    }
    parameter.shape[0] = row;
  }

  void split_columns(Parameter& parameter) {
    const std::int64_t part = parameter.shape[1] / degree_;
    for (Block& block : parameter.blocks) {
      block = columns_of(block, part * rank_, part);
      block.replicas = {rank_};
    }
    parameter.shape[1] = part;
  }

  std::int64_t vocabulary_part() const { return (program_.model.vocab_size + degree_ - 1) / degree_; }

  void split_vocabulary(Parameter& parameter) {
    const std::int64_t part = vocabulary_part();
    PACELINE_CHECK(parameter.blocks.size() == 1);
    const std::int64_t first = part * rank_;
    const std::int64_t count = std::min(part, program_.model.vocab_size - first);
    if (count > 0) {
      parameter.blocks[0] = rows_of(parameter.blocks[0], first, count, 0);
      parameter.blocks[0].replicas = {rank_};
    } else {
      parameter.blocks.clear();  // padding only
    }
    parameter.shape[0] = part;
  }

  int add_value(const std::string& name, std::int64_t width) {
    program_.values.push_back({name, ValueKind::activation, width});
    return static_cast<int>(program_.values.size()) - 1;
  }

  void append(OperationKind kind, const Operation& after, const std::string& suffix, int input, int output,
              std::vector<int> parameters = {}) {
    rewritten_.push_back({.kind = kind, .name = after.name + suffix, .inputs = {input}, .outputs = {output},
                          .parameters = std::move(parameters), .in_place = true, .layer = after.layer});
  }

  /// The value that column-parallel consumers of `value` read: its copy whose backward sums over the group.
  int copied(int value, const Operation& consumer) {
    const auto [found, is_new] = copies_.try_emplace(value, -1);
    if (is_new) {
      found->second = add_value(program_.values[value].name + ".copy", program_.values[value].width);
      append(OperationKind::tensor_parallel_copy, consumer, ".input_copy", value, found->second);
    }
    return found->second;
  }

  void rewrite_operations() {
    for (Operation operation : std::vector<Operation>(program_.operations)) {
      operation.heads /= degree_;
      operation.kv_heads = std::max<std::int64_t>(operation.kv_heads / degree_, operation.heads > 0 ? 1 : 0);
      switch (operation.kind) {
        case OperationKind::embedding: {
          operation.vocab_begin = vocabulary_part() * rank_;
          const int sum = operation.outputs[0];
          operation.outputs[0] = add_value(program_.values[sum].name + ".part", program_.values[sum].width);
          rewritten_.push_back(operation);
          append(OperationKind::all_reduce, operation, ".sum", operation.outputs[0], sum);
          break;
        }
        case OperationKind::cross_entropy:
          operation.vocab_begin = vocabulary_part() * rank_;
          rewritten_.push_back(operation);
          break;
        case OperationKind::linear:
          if (operation.split == Split::row) {
            row_parallel(operation);
          } else {
            operation.inputs[0] = copied(operation.inputs[0], operation);
            program_.values[operation.outputs[0]].width = program_.parameters[operation.parameters[0]].shape[0];
            rewritten_.push_back(operation);
          }
          break;
        case OperationKind::rope:
          program_.values[operation.outputs[0]].width = program_.values[operation.inputs[0]].width;
          rewritten_.push_back(operation);
          break;
        case OperationKind::attention:
          program_.values[operation.outputs[0]].width = operation.heads * operation.head_dim;
          rewritten_.push_back(operation);
          break;
        case OperationKind::swiglu:
        case OperationKind::gelu:
          program_.values[operation.outputs[0]].width /= degree_;
          rewritten_.push_back(operation);
          break;
        default:
          rewritten_.push_back(operation);
      }
    }
    program_.operations = std::move(rewritten_);
  }

  void row_parallel(Operation operation) {
    const int result = operation.outputs[0];
    const std::int64_t width = program_.values[result].width;
    const std::string name = program_.values[result].name;
    const std::vector<int> parameters = operation.parameters;
    operation.parameters.resize(1);
    operation.outputs[0] = add_value(name + ".part", width);
    rewritten_.push_back(operation);
    if (parameters.size() == 1) {
      append(OperationKind::all_reduce, operation, ".sum", operation.outputs[0], result);
    } else {
      const int sum = add_value(name + ".sum", width);
      append(OperationKind::all_reduce, operation, ".sum", operation.outputs[0], sum);
      append(OperationKind::add_bias, operation, ".bias", sum, result, {parameters[1]});
    }
  }

  Program program_;
  int degree_;
  int rank_;
  std::set<int> done_;
  std::map<int, int> copies_;
  std::vector<Operation> rewritten_;
};

}  // namespace

Program tensor_parallel(const Program& whole, int degree, int rank) {
  PACELINE_CHECK(degree >= 1 && rank >= 0 && rank < degree);
  return TensorParallelPass(whole, degree, rank).run();
}

}  // namespace paceline
