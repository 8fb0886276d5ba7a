#include "paceline/parallel/rank_program.h"

#include "paceline/base/error.h"

#include <re2/re2.h>

#include <algorithm>
#include <memory>

namespace paceline {
namespace {

void freeze(Program& program, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const RE2 expression(pattern, RE2::Quiet);
    if (!expression.ok()) refuse("train.frozen: '{}' is no regular expression: {}", pattern, expression.error());
    bool matches = false;
    for (Parameter& parameter : program.parameters) {
      for (Block& block : parameter.blocks) {
        if (RE2::FullMatch(block.tensor, expression)) {
          block.trainable = false;
          matches = true;
        }
      }
    }
    if (!matches) {
      refuse("train.frozen: '{}' matches no parameter of the model; names look like '{}'", pattern,
             program.parameters.back().blocks.front().tensor);
    }
  }
}

}  // namespace

Program build_rank_program(const ModelConfig& model, const ParallelOptions& options, Coordinate coordinate) {
  Program program = build_program(model);
  freeze(program, options.frozen);
  program = tensor_parallel(program, options.layout.tp, coordinate.tp);
  verify(program);
  program = pipeline_stage(program, stage_layers(options, model.num_hidden_layers), coordinate.pp, options.layout.tp,
                           coordinate.tp);
  verify(program);
  return program;
}

bool has_partial_gradients(const Program& program) {
  for (const Parameter& parameter : program.parameters) {
    for (const Block& block : parameter.blocks) {
      if (block.trainable && block.gradient_is_partial && block.replicas.size() > 1) return true;
    }
  }
  return false;
}

GradientBuckets gradient_buckets(const Program& program, std::int64_t bucket_bytes, std::int64_t element_bytes) {
  struct Entry {
    int parameter;
    int completed_by;  // operation whose backward, in reverse order, adds the last part; -1: after the replica groups
  };
  std::vector<int> first_use(program.parameters.size(), -1);
  for (int i = static_cast<int>(program.operations.size()) - 1; i >= 0; --i) {
    for (const int parameter : program.operations[i].parameters) first_use[parameter] = i;
  }
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    const Parameter& parameter = program.parameters[i];
    // A padding-only shard has no block; its product still writes a gradient.
    if (!parameter.trainable() && !parameter.blocks.empty()) continue;
    const bool partial = std::any_of(parameter.blocks.begin(), parameter.blocks.end(), [](const Block& block) {
      return block.gradient_is_partial && block.replicas.size() > 1;
    });
    entries.push_back({static_cast<int>(i), partial ? -1 : first_use[i]});
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.completed_by > b.completed_by; });

  constexpr std::int64_t alignment = 16;
  GradientBuckets result;
  std::int64_t bucket_begin = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    result.order.push_back(entries[i].parameter);
    result.offsets.push_back(result.elements);
    const std::int64_t elements = program.parameters[entries[i].parameter].elements();
    result.elements += (elements + alignment - 1) / alignment * alignment;
    const bool last = i + 1 == entries.size();
    const bool partial_begins = !last && entries[i + 1].completed_by < 0 && entries[i].completed_by >= 0;
    if (last || partial_begins || (result.elements - bucket_begin) * element_bytes >= bucket_bytes) {
      result.buckets.emplace_back(bucket_begin, result.elements);
      result.completed_by.push_back(entries[i].completed_by);
      bucket_begin = result.elements;
    }
  }
  return result;
}

}  // namespace paceline
