#include "paceline/train/model_state.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"

#include <ATen/ops/zeros.h>

namespace paceline {
namespace {

/// The ranges of one parameter's storage by block. Blocks fill whole rows; what lies between them is padding.
std::vector<Segment> segments_of(const Parameter& parameter, int index, std::int64_t offset, int model_coordinate) {
  const std::int64_t columns = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
  std::vector<Segment> segments;
  for (const Block& block : parameter.blocks) {
    if (!block.trainable) continue;
    segments.push_back({.begin = offset + block.row * columns,
                        .end = offset + (block.row + local_rows(block)) * columns,
                        .decays = parameter.decays,
                        .counted = block.replicas.empty() || block.replicas.front() == model_coordinate,
                        .parameter = index,
                        .begins_parameter = block.row == 0,
                        .ends_parameter = block.row + local_rows(block) == parameter.shape[0]});
  }
  return segments;
}

}  // namespace

Precision parse_precision(const std::string& name) {
  if (name == "fp32") return {};
  if (name == "fp64") return {.parameters = at::kDouble, .gradients = at::kDouble, .optimizer = at::kDouble};
  refuse("train.precision is '{}': it may be fp32 or fp64", name);
}

ModelState::ModelState(const Program& program, int model_coordinate, const Precision& precision, std::int64_t bucket_bytes,
                       bool with_optimizer, MemoryAccount& account)
    : program_(program),
      bucket_bytes_(bucket_bytes),
      buckets_(gradient_buckets(program, bucket_bytes, static_cast<std::int64_t>(c10::elementSize(precision.gradients)))),
      offsets_(program.parameters.size(), -1),
      weights_(program.parameters.size()),
      gradients_(program.parameters.size()) {
  for (std::size_t i = 0; i < buckets_.order.size(); ++i) offsets_[buckets_.order[i]] = buckets_.offsets[i];
  const auto zeros = [&](at::IntArrayRef shape, at::ScalarType type, MemoryClass memory_class) {
    const AccountScope scope(account, memory_class);
    return at::zeros(shape, at::TensorOptions().dtype(type));
  };
  flat_weights = zeros({buckets_.elements}, precision.parameters, MemoryClass::parameters);
  if (with_optimizer) {
    flat_gradients = zeros({buckets_.elements}, precision.gradients, MemoryClass::gradients);
    first_moments = zeros({buckets_.elements}, precision.optimizer, MemoryClass::optimizer);
    second_moments = zeros({buckets_.elements}, precision.optimizer, MemoryClass::optimizer);
  }
  for (std::size_t i = 0; i < program.parameters.size(); ++i) {
    const int index = static_cast<int>(i);
    if (offsets_[i] < 0) {
      weights_[i] = zeros(program.parameters[i].shape, precision.parameters, MemoryClass::parameters);
      continue;
    }
    weights_[i] = view_of(flat_weights, index);
    if (with_optimizer) gradients_[i] = view_of(flat_gradients, index);
    for (Segment& segment : segments_of(program.parameters[i], index, offsets_[i], model_coordinate)) {
      segments_.push_back(segment);
    }
  }
  std::sort(segments_.begin(), segments_.end(), [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
}

at::Tensor ModelState::view_of(const at::Tensor& flat, int parameter) const {
  const Parameter& shape_of = program_.parameters[parameter];
  PACELINE_CHECK(offsets_[parameter] >= 0);
  return flat.narrow(0, offsets_[parameter], shape_of.elements()).view(shape_of.shape);
}

void ModelState::initialize_weights(std::uint64_t seed) {
  for (std::size_t i = 0; i < program_.parameters.size(); ++i) initialize(program_.parameters[i], seed, weights_[i]);
}

}  // namespace paceline
