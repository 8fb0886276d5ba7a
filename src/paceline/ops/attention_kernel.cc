#include "paceline/ops/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
namespace paceline::avx512 {
constexpr int lanes = 16;
constexpr int most_rows = 6;
constexpr int most_vectors = 4;
#include "paceline/ops/attention_kernel.inc"
}  // namespace paceline::avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace paceline::avx2 {
constexpr int lanes = 8;
constexpr int most_rows = 6;
constexpr int most_vectors = 2;
#include "paceline/ops/attention_kernel.inc"
}  // namespace paceline::avx2
#pragma GCC pop_options
#endif

namespace paceline::baseline {
constexpr int lanes = 4;
constexpr int most_rows = 6;
constexpr int most_vectors = 2;
#include "paceline/ops/attention_kernel.inc"
}  // namespace paceline::baseline

namespace paceline {

InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return InstructionSet::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::avx2;
#endif
  return InstructionSet::baseline;
}

const AttentionKernel& attention_kernel(InstructionSet instruction_set) {
#if defined(__x86_64__)
  if (instruction_set == InstructionSet::avx512) return avx512::kernel;
  if (instruction_set == InstructionSet::avx2) return avx2::kernel;
#endif
  return baseline::kernel;
}

}  // namespace paceline
