#pragma once

#include "paceline/arch/program.h"

#include <cstdint>
#include <vector>

namespace paceline {

/// What one operation does for one micro-batch, as it declares it; the trainer's counters and allocator are held
/// against these numbers in the tests.
struct OperationCost {
  /// Matrix products and attention only, multiply and add counted as two. Attention is causal (half of the score
  /// matrix), and what its backward computes again is not counted: its backward is twice its forward.
  double forward_flops = 0;
  double backward_input_flops = 0;
  double backward_weight_flops = 0;
  double forward_bytes = 0;          ///< memory traffic, read and written
  double backward_input_bytes = 0;
  double backward_weight_bytes = 0;
  double forward_message_bytes = 0;  ///< payload of its collectives over the tensor group, forward
  double backward_message_bytes = 0;
  int forward_messages = 0;          ///< number of those collectives
  int backward_messages = 0;
  std::vector<int> saved_values;     ///< values (Program::values) kept from forward to backward
  double saved_extra_bytes = 0;      ///< statistics kept beside them (reciprocal deviations, log-sum-exps)
  double parameters = 0;             ///< elements it reads
};

/// Sizes of one micro-batch.
struct MicroBatch {
  std::int64_t sequences = 1;
  std::int64_t sequence_length = 1;
  std::int64_t element_bytes = 4;
  std::int64_t tokens() const { return sequences * sequence_length; }
};

/// A product whose weight is frozen keeps no input and has no weight gradient.
OperationCost operation_cost(const Program& program, const Operation& operation, const MicroBatch& micro_batch);

/// Bytes of a value: tokens are 64-bit integers, the loss a scalar.
double value_bytes(const Program& program, int value, const MicroBatch& micro_batch);

/// The value whose storage each value lies in: its own index, or the first input of the in-place operation (or chain of
/// them) that wrote it.
std::vector<int> value_storage(const Program& program);

/// Bytes held from forward to backward of one micro-batch by the whole program: each saved storage once, plus
/// statistics.
double saved_bytes(const Program& program, const MicroBatch& micro_batch);

/// Model FLOPs of one token, forward and backward: 6 x (parameters of matrix products: no lookups, norms or biases; the
/// head counts, tied or not) + 6 x layers x sequence_length x heads x head_dim (causal attention). Recomputation is never
/// counted.
double model_flops_per_token(const ModelConfig& model, std::int64_t sequence_length);

}  // namespace paceline
