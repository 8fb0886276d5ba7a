#pragma once

#include "paceline/arch/program.h"
#include "paceline/ops/memory_account.h"
#include "paceline/parallel/rank_program.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// A range of the flat buffers with one treatment.
struct Segment {
  std::int64_t begin = 0;  ///< elements
  std::int64_t end = 0;
  bool decays = false;     ///< AdamW's decay applies
  bool counted = false;    ///< this rank counts it in the global gradient norm
  int parameter = -1;      ///< index into Program::parameters
  bool begins_parameter = false;  ///< nothing of the parameter lies before it
  bool ends_parameter = false;    ///< nothing of the parameter lies behind it
};

/// The one place where a run's precision is decided. Today every role has the same type; mixed precision separates them
/// here.
struct Precision {
  at::ScalarType parameters = at::kFloat;
  at::ScalarType gradients = at::kFloat;
  at::ScalarType optimizer = at::kFloat;
};

Precision parse_precision(const std::string& name);

/// The tensors of one rank's stage: weights, gradients and AdamW's moments. Trainable parameters lie one after the other
/// in flat buffers of one order (GradientBuckets), so that reductions, the norm and the update run over ranges.
class ModelState {
 public:
  /// Allocates under `account`, by class. `with_optimizer` false: weights only (evaluation, inference).
  ModelState(const Program& program, int model_coordinate, const Precision& precision, std::int64_t bucket_bytes,
             bool with_optimizer, MemoryAccount& account);

  /// Initial values as a function of the seed (see initialize()).
  void initialize_weights(std::uint64_t seed);

  const at::Tensor& weight(int parameter) const { return weights_[parameter]; }
  /// Undefined for frozen parameters.
  const at::Tensor& gradient(int parameter) const { return gradients_[parameter]; }

  std::int64_t bucket_bytes() const { return bucket_bytes_; }
  const GradientBuckets& buckets() const { return buckets_; }
  const std::vector<Segment>& segments() const { return segments_; }
  at::Tensor flat_weights, flat_gradients, first_moments, second_moments;

  /// The view of a flat buffer (or of a frozen parameter's own weight) that belongs to a parameter, in its shape.
  at::Tensor view_of(const at::Tensor& flat, int parameter) const;
  bool is_flat(int parameter) const { return offsets_[parameter] >= 0; }

 private:
  const Program& program_;
  std::int64_t bucket_bytes_;
  GradientBuckets buckets_;
  std::vector<std::int64_t> offsets_;  ///< of each parameter in the flat buffers, -1: frozen
  std::vector<Segment> segments_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace paceline
