#include "paceline/base/error.h"
#include "paceline/parallel/rank_program.h"

#include <algorithm>
#include <numeric>

namespace paceline {
namespace {

/// The stage of each operation: by its layer; what stands before the first layer is on the first stage, what stands
/// after the last layer on the last.
std::vector<int> stages_of_operations(const Program& program, const std::vector<std::int64_t>& layers_per_stage) {
  std::vector<int> stage_of_layer;
  for (std::size_t stage = 0; stage < layers_per_stage.size(); ++stage) {
    stage_of_layer.insert(stage_of_layer.end(), layers_per_stage[stage], static_cast<int>(stage));
  }
  std::vector<int> stages;
  bool layers_begun = false;
  for (const Operation& operation : program.operations) {
    layers_begun = layers_begun || operation.layer >= 0;
    if (operation.layer >= 0) {
      stages.push_back(stage_of_layer.at(operation.layer));
    } else {
      stages.push_back(layers_begun ? static_cast<int>(layers_per_stage.size()) - 1 : 0);
    }
  }
  return stages;
}

}  // namespace

std::vector<std::int64_t> stage_layers(const ParallelOptions& options, std::int64_t layers) {
  const int stages = options.layout.pp;
  if (stages > layers) {
    refuse("parallel.pp = {} is more than the model's {} layers: each stage needs at least one; pp may be at most {}", stages,
           layers, layers);
  }
  if (options.layers_per_stage.empty()) {
    std::vector<std::int64_t> split(stages, layers / stages);
    for (std::int64_t stage = 0; stage < layers % stages; ++stage) ++split[stage];
    return split;
  }
  const std::int64_t sum = std::accumulate(options.layers_per_stage.begin(), options.layers_per_stage.end(), std::int64_t{0});
  const bool has_empty = std::any_of(options.layers_per_stage.begin(), options.layers_per_stage.end(),
                                     [](std::int64_t count) { return count < 1; });
  if (static_cast<int>(options.layers_per_stage.size()) != stages || sum != layers || has_empty) {
    refuse("parallel.layers_per_stage = [{}] gives {} layers on {} stages; the model has {} layers and parallel.pp is {}, and "
           "each stage needs at least one layer",
           fmt::join(options.layers_per_stage, ", "), sum, options.layers_per_stage.size(), layers, stages);
  }
  return options.layers_per_stage;
}

Program pipeline_stage(const Program& program, const std::vector<std::int64_t>& layers_per_stage, int stage, int tp_degree,
                       int tp_rank) {
  const int stages = static_cast<int>(layers_per_stage.size());
  const std::vector<int> stage_of = stages_of_operations(program, layers_per_stage);

  std::vector<int> producer(program.values.size(), -1);
  std::vector<std::vector<int>> users(program.parameters.size());
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    for (const int output : program.operations[i].outputs) producer[output] = stage_of[i];
    for (const int parameter : program.operations[i].parameters) users[parameter].push_back(stage_of[i]);
  }

  Program result;
  result.model = program.model;
  std::vector<int> value_of(program.values.size(), -1);
  std::vector<int> parameter_of(program.parameters.size(), -1);
  const auto take_value = [&](int value) {
    if (value_of[value] < 0) {
      value_of[value] = static_cast<int>(result.values.size());
      result.values.push_back(program.values[value]);
    }
    return value_of[value];
  };
  const auto take_parameter = [&](int index) {
    if (parameter_of[index] >= 0) return parameter_of[index];
    Parameter parameter = program.parameters[index];
    std::vector<int> on_stages = users[index];
    std::sort(on_stages.begin(), on_stages.end());
    on_stages.erase(std::unique(on_stages.begin(), on_stages.end()), on_stages.end());
    for (Block& block : parameter.blocks) {
      const std::vector<int> tensor_ranks = block.replicas.empty() ? std::vector<int>{tp_rank} : block.replicas;
      block.replicas.clear();
      for (const int at : on_stages) {
        for (const int rank : tensor_ranks) block.replicas.push_back(at * tp_degree + rank);
      }
      // A table on two stages gets half of its gradient on each.
      block.gradient_is_partial = block.gradient_is_partial || on_stages.size() > 1;
    }
    parameter_of[index] = static_cast<int>(result.parameters.size());
    result.parameters.push_back(std::move(parameter));
    return parameter_of[index];
  };

  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    if (stage_of[i] != stage) continue;
    Operation operation = program.operations[i];
    for (int& input : operation.inputs) {
      if (producer[input] >= 0 && producer[input] != stage) {
        PACELINE_CHECK(producer[input] == stage - 1 && (result.input < 0 || result.input == value_of[input]));
        result.input = take_value(input);
      }
      input = take_value(input);
    }
    for (int& output : operation.outputs) output = take_value(output);
    for (int& parameter : operation.parameters) parameter = take_parameter(parameter);
    result.operations.push_back(std::move(operation));
  }
  if (stage + 1 < stages) {
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      if (stage_of[i] != stage + 1) continue;
      for (const int input : program.operations[i].inputs) {
        if (producer[input] == stage) result.output = value_of[input];
      }
    }
    PACELINE_CHECK(result.output >= 0);
  }
  const auto map_value = [&](int value) { return value < 0 ? -1 : value_of[value]; };
  result.tokens = map_value(program.tokens);
  result.targets = map_value(program.targets);
  result.logits = map_value(program.logits);
  result.loss = map_value(program.loss);
  return result;
}

}  // namespace paceline
