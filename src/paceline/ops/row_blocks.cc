#include "paceline/ops/row_blocks.h"

#include "paceline/ops/simd.h"

namespace paceline {
namespace {

template <typename T>
PACELINE_INLINE void add_rows_body(const T* matrix, int64_t rows, int64_t width, T* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = matrix + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) sums[i] += row[i];
  }
}

PACELINE_SIMD void add_rows(const float* matrix, int64_t rows, int64_t width, float* sums) {
  add_rows_body(matrix, rows, width, sums);
}
PACELINE_SIMD void add_rows(const double* matrix, int64_t rows, int64_t width, double* sums) {
  add_rows_body(matrix, rows, width, sums);
}

template <typename T>
void sum_rows_of(const T* matrix, int64_t rows, int64_t width, T* total, bool accumulate) {
  sum_over_row_blocks(rows, width, total, accumulate, [&](int64_t first, int64_t last, T* sums) {
    add_rows(matrix + first * width, last - first, width, sums);
  });
}

}  // namespace

void sum_rows(const float* matrix, int64_t rows, int64_t width, float* total, bool accumulate) {
  sum_rows_of(matrix, rows, width, total, accumulate);
}

void sum_rows(const double* matrix, int64_t rows, int64_t width, double* total, bool accumulate) {
  sum_rows_of(matrix, rows, width, total, accumulate);
}

}  // namespace paceline
