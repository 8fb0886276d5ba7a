#pragma once

#include <cstdint>

namespace paceline {

/// The work of one key/value head of one sequence: `group` query heads that share it. All pointers are to the first row
/// (position 0) of the head in question; rows are `qkv_stride` or `y_stride` floats apart, the group's query heads
/// head_dim apart, and the group's rows of logsumexp `length` apart.
struct AttentionUnit {
  int64_t length;
  int64_t group;
  int64_t head_dim;
  int64_t qkv_stride;
  int64_t y_stride;
  const float* q;
  const float* k;
  const float* v;
  float* y;  ///< read only by the backward pass
  float* logsumexp;  ///< likewise
};

struct AttentionUnitGradient {
  const float* dy;
  float* dq;
  float* dk;
  float* dv;
};

/// Causal attention of one unit by tiles of 64 x 64 scores, for one instruction set.
struct AttentionKernel {
  int64_t (*forward_workspace)(int64_t length, int64_t head_dim);   ///< floats, 64-byte aligned
  int64_t (*backward_workspace)(int64_t length, int64_t head_dim);
  void (*forward)(const AttentionUnit& unit, float* workspace);
  void (*backward)(const AttentionUnit& unit, const AttentionUnitGradient& gradient, float* workspace);
};

enum class InstructionSet { baseline, avx2, avx512 };

/// The best that this CPU has.
InstructionSet best_instruction_set();

/// The kernel for an instruction set that this CPU has.
const AttentionKernel& attention_kernel(InstructionSet instruction_set);

}  // namespace paceline
