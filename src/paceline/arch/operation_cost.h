#pragma once

#include "paceline/arch/program.h"

#include <cstdint>
#include <vector>

namespace paceline {

/// What one operation does for one micro-batch, as it declares it; the trainer's counters and allocator are held
/// against these numbers in the tests.
struct OperationCost {
  double forward_flops = 0;          ///< matrix products and attention only (multiply and add count as two)
  double backward_input_flops = 0;
  double backward_weight_flops = 0;
  double forward_bytes = 0;          ///< memory traffic, read and written
  double backward_input_bytes = 0;
  double backward_weight_bytes = 0;
  double forward_message_bytes = 0;  ///< payload of its collective over the tensor group, forward
  double backward_message_bytes = 0;
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

OperationCost operation_cost(const Program& program, const Operation& operation, const MicroBatch& micro_batch);

/// Bytes of a value.
double value_bytes(const Program& program, int value, const MicroBatch& micro_batch);

/// Bytes held from forward to backward of one micro-batch by the whole program: each saved value once, plus statistics.
double saved_bytes(const Program& program, const MicroBatch& micro_batch);

/// Model FLOPs of one token, forward and backward: 6 x (parameters without the input embedding; a tied head's product
/// counts) + 6 x layers x sequence_length x heads x head_dim (causal attention). Recomputation is never counted.
double model_flops_per_token(const ModelConfig& model, std::int64_t sequence_length);

}  // namespace paceline
