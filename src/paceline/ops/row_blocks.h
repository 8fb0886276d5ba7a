#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline {

/// A split of rows into blocks that depends on their number only, never on threads: partial sums by block, added up in
/// block order, are the same bits whoever computed them.
struct RowBlocks {
  int64_t rows;
  int64_t size;

  explicit RowBlocks(int64_t rows_) : rows(rows_), size(std::max<int64_t>(16, (rows_ + 63) / 64)) {}
  int64_t count() const { return (rows + size - 1) / size; }
  int64_t begin(int64_t block) const { return block * size; }
  int64_t end(int64_t block) const { return std::min(rows, (block + 1) * size); }
};

/// Runs `body(first_row, last_row, sums)` over all blocks in parallel, `sums` being the block's own zeroed buffer of
/// `width` elements, and then writes the buffers' sum to `total` (adds it with `accumulate`).
template <typename T, typename Body>
void sum_over_row_blocks(int64_t rows, int64_t width, T* total, bool accumulate, const Body& body) {
  const RowBlocks blocks(rows);
  std::vector<T> sums(blocks.count() * width);
  at::parallel_for(0, blocks.count(), 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) body(blocks.begin(b), blocks.end(b), sums.data() + b * width);
  });
  if (!accumulate) std::fill(total, total + width, T(0));
  for (int64_t b = 0; b < blocks.count(); ++b)
    for (int64_t i = 0; i < width; ++i) total[i] += sums[b * width + i];
}

/// total [width] = or += the sum of the rows of a contiguous matrix.
void sum_rows(const float* matrix, int64_t rows, int64_t width, float* total, bool accumulate);
void sum_rows(const double* matrix, int64_t rows, int64_t width, double* total, bool accumulate);

}  // namespace paceline
