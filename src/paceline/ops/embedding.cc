#include "paceline/ops/embedding.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "paceline/ops/floating.h"

namespace paceline {
namespace {

// Columns that one task handles: positions are then visited in order by each, whatever the number of threads.
constexpr int64_t column_grain = 64;

}  // namespace

at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& table, int64_t first_row) {
  PACELINE_CHECK(tokens.scalar_type() == at::kLong && tokens.is_contiguous());
  PACELINE_CHECK(table.dim() == 2 && table.is_contiguous() && first_row >= 0);
  const int64_t rows = table.size(0);
  const int64_t width = table.size(1);
  std::vector<int64_t> sizes = tokens.sizes().vec();
  sizes.push_back(width);
  const int64_t* ids = tokens.const_data_ptr<int64_t>();
  for (int64_t p = 0; p < tokens.numel(); ++p)
    if (ids[p] < 0) fail("the token {} at position {} of the batch is negative: the data is damaged", ids[p], p);
  at::Tensor y = at::empty(sizes, table.options());
  with_floating_type(table, [&](auto zero) {
    using T = decltype(zero);
    const T* from = table.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    at::parallel_for(0, tokens.numel(), 32, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t row = ids[p] - first_row;
        if (row >= 0 && row < rows) {
          std::copy_n(from + row * width, width, to + p * width);
        } else {
          std::fill_n(to + p * width, width, T(0));
        }
      }
    });
  });
  return y;
}

void embedding_backward(const at::Tensor& dy, const at::Tensor& tokens, int64_t first_row,
                        const at::Tensor& grad_table) {
  PACELINE_CHECK(tokens.scalar_type() == at::kLong && tokens.is_contiguous() && rows_of(dy) == tokens.numel());
  PACELINE_CHECK(grad_table.dim() == 2 && grad_table.is_contiguous() && grad_table.size(1) == dy.size(-1));
  const int64_t rows = grad_table.size(0);
  const int64_t width = grad_table.size(1);
  const int64_t* ids = tokens.const_data_ptr<int64_t>();
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    const T* from = dy.const_data_ptr<T>();
    T* to = grad_table.mutable_data_ptr<T>();
    at::parallel_for(0, width, column_grain, [&](int64_t first, int64_t last) {
      for (int64_t p = 0; p < tokens.numel(); ++p) {
        const int64_t row = ids[p] - first_row;
        if (row < 0 || row >= rows) continue;
        T* out = to + row * width;
        const T* in = from + p * width;
#pragma omp simd
        for (int64_t i = first; i < last; ++i) out[i] += in[i];
      }
    });
  });
}

at::Tensor position_embedding_forward(const at::Tensor& x, const at::Tensor& table, int64_t first_position) {
  PACELINE_CHECK(x.dim() == 3 && x.is_contiguous() && table.is_contiguous() && table.size(1) == x.size(2));
  const int64_t length = x.size(1);
  const int64_t width = x.size(2);
  if (first_position + length > table.size(0))
    fail("position {} is beyond the model's {} learned positions", first_position + length - 1, table.size(0));
  at::Tensor y = at::empty_like(x);
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    const T* positions = table.const_data_ptr<T>() + first_position * width;
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, x.size(0) * length, 16, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const T* row = positions + (p % length) * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) out[p * width + i] = in[p * width + i] + row[i];
      }
    });
  });
  return y;
}

void position_embedding_backward(const at::Tensor& dy, const at::Tensor& grad_table) {
  PACELINE_CHECK(dy.dim() == 3 && dy.is_contiguous() && grad_table.is_contiguous());
  PACELINE_CHECK(grad_table.size(1) == dy.size(2) && grad_table.size(0) >= dy.size(1));
  const int64_t length = dy.size(1);
  const int64_t width = dy.size(2);
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    const T* in = dy.const_data_ptr<T>();
    T* out = grad_table.mutable_data_ptr<T>();
    at::parallel_for(0, length, 16, [&](int64_t first, int64_t last) {
      for (int64_t b = 0; b < dy.size(0); ++b) {
        const T* block = in + b * length * width;
#pragma omp simd
        for (int64_t i = first * width; i < last * width; ++i) out[i] += block[i];
      }
    });
  });
}

}  // namespace paceline
