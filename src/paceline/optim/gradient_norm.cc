#include "paceline/optim/gradient_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

constexpr int64_t block_size = 1 << 15;

template <typename T>
PACELINE_INLINE double squares_body(const T* values, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(values[i]);
    sum += value * value;
  }
  return sum;
}

PACELINE_SIMD double squares_of(const float* values, int64_t count) { return squares_body(values, count); }
PACELINE_SIMD double squares_of(const double* values, int64_t count) { return squares_body(values, count); }

}  // namespace

double sum_of_squares(const at::Tensor& values) {
  PACELINE_CHECK(values.is_contiguous());
  const int64_t count = values.numel();
  const int64_t blocks = (count + block_size - 1) / block_size;
  std::vector<double> sums(blocks);
  with_floating_type(values, [&](auto zero) {
    using T = decltype(zero);
    const T* data = values.const_data_ptr<T>();
    at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b)
        sums[b] = squares_of(data + b * block_size, std::min(block_size, count - b * block_size));
    });
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

std::optional<double> clip_coefficient(double norm, double max_norm) {
  if (!std::isfinite(max_norm) || max_norm < 0)
    refuse("the largest gradient norm must be 0 (no clipping) or a positive number, not {}", max_norm);
  if (!std::isfinite(norm)) return std::nullopt;
  if (max_norm == 0) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace paceline
