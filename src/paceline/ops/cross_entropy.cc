#include "paceline/ops/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

// Columns whose exponentials are added up in one go; the parts' sums are added in fp64.
constexpr int64_t sum_block = 1024;

template <typename T>
PACELINE_INLINE T maximum_body(const T* row, int64_t width) {
  // Four quarters at a time: one chain of comparisons would wait for itself.
  const int64_t quarter = width / 4;
  const T* second = row + quarter;
  const T* third = second + quarter;
  const T* fourth = third + quarter;
  T a = -std::numeric_limits<T>::infinity();
  T b = a;
  T c = a;
  T d = a;
#pragma omp simd reduction(max : a, b, c, d)
  for (int64_t i = 0; i < quarter; ++i) {
    a = row[i] > a ? row[i] : a;
    b = second[i] > b ? second[i] : b;
    c = third[i] > c ? third[i] : c;
    d = fourth[i] > d ? fourth[i] : d;
  }
  for (int64_t i = 4 * quarter; i < width; ++i) a = row[i] > a ? row[i] : a;
  return std::max(std::max(a, b), std::max(c, d));
}

/// The sum of exp(row - maximum); with `store` the exponentials replace the row.
template <typename T, bool store>
PACELINE_INLINE double exponentials_body(T* row, int64_t width, T maximum) {
  double total = 0;
  for (int64_t first = 0; first < width; first += sum_block) {
    const int64_t last = first + sum_block < width ? first + sum_block : width;
    // The next row comes from memory while this one's exponentials are computed.
    constexpr int64_t cache_line = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t i = first; i < last; i += cache_line) __builtin_prefetch(row + width + i, 0, 2);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < last; ++i) {
      const T e = vector_exp(row[i] - maximum);
      sum += e;
      if constexpr (store) row[i] = e;
    }
    total += static_cast<double>(sum);
  }
  return total;
}

PACELINE_SIMD float maximum_of(const float* row, int64_t width) { return maximum_body(row, width); }
PACELINE_SIMD double maximum_of(const double* row, int64_t width) { return maximum_body(row, width); }
PACELINE_SIMD double store_exponentials(float* row, int64_t width, float maximum) {
  return exponentials_body<float, true>(row, width, maximum);
}
PACELINE_SIMD double store_exponentials(double* row, int64_t width, double maximum) {
  return exponentials_body<double, true>(row, width, maximum);
}
PACELINE_SIMD double sum_exponentials(const float* row, int64_t width, float maximum) {
  return exponentials_body<float, false>(const_cast<float*>(row), width, maximum);
}
PACELINE_SIMD double sum_exponentials(const double* row, int64_t width, double maximum) {
  return exponentials_body<double, false>(const_cast<double*>(row), width, maximum);
}
PACELINE_SIMD void scale_row(float* row, int64_t width, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) row[i] *= factor;
}
PACELINE_SIMD void scale_row(double* row, int64_t width, double factor) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) row[i] *= factor;
}

/// The rows and columns of one call.
struct Problem {
  int64_t rows;
  int64_t width;   ///< columns of the storage
  int64_t filled;  ///< of these, the leading ones that are in the vocabulary
  const int64_t* targets;
  const uint8_t* mask;
  int64_t first_column;

  bool counted(int64_t row) const { return mask == nullptr || mask[row] != 0; }
  /// The target's local column, or -1 if another rank has it.
  int64_t column(int64_t row) const {
    const int64_t column = targets[row] - first_column;
    return column >= 0 && column < filled ? column : -1;
  }
};

Problem describe(const at::Tensor& logits, const CrossEntropyTargets& targets) {
  Problem problem;
  problem.rows = rows_of(logits);
  problem.width = logits.size(-1);
  problem.filled = std::clamp<int64_t>(targets.vocabulary - targets.first_column, 0, problem.width);
  PACELINE_CHECK(targets.targets.scalar_type() == at::kLong && targets.targets.is_contiguous());
  PACELINE_CHECK(targets.targets.numel() == problem.rows && targets.vocabulary > 0 && targets.first_column >= 0);
  problem.targets = targets.targets.const_data_ptr<int64_t>();
  problem.mask = nullptr;
  if (targets.mask.defined()) {
    PACELINE_CHECK(targets.mask.scalar_type() == at::kByte && targets.mask.is_contiguous());
    PACELINE_CHECK(targets.mask.numel() == problem.rows);
    problem.mask = targets.mask.const_data_ptr<uint8_t>();
  }
  problem.first_column = targets.first_column;
  for (int64_t r = 0; r < problem.rows; ++r)
    if (problem.counted(r) && (problem.targets[r] < 0 || problem.targets[r] >= targets.vocabulary))
      fail("the target {} at position {} of the batch is outside the vocabulary of {} tokens", problem.targets[r], r,
           targets.vocabulary);
  return problem;
}

/// The softmax's gradient from stored exponentials and their global sum.
template <typename T>
void finish_row(const Problem& problem, int64_t r, T* row, double sum, double scale) {
  scale_row(row, problem.filled, static_cast<T>(scale / sum));
  if (const int64_t column = problem.column(r); column >= 0) row[column] -= static_cast<T>(scale);
  std::fill(row + problem.filled, row + problem.width, T(0));
}

template <typename T>
double whole_rows(const Problem& problem, T* logits, bool gradient, double scale) {
  std::vector<double> losses(problem.rows);
  at::parallel_for(0, problem.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      T* row = logits + r * problem.width;
      if (!problem.counted(r)) {
        if (gradient) std::fill_n(row, problem.width, T(0));
        continue;
      }
      const T maximum = maximum_of(row, problem.filled);
      const double target = static_cast<double>(row[problem.column(r)]);
      const double sum = gradient ? store_exponentials(row, problem.filled, maximum)
                                  : sum_exponentials(row, problem.filled, maximum);
      losses[r] = std::log(sum) + static_cast<double>(maximum) - target;
      if (gradient) finish_row(problem, r, row, sum, scale);
    }
  });
  double total = 0;
  for (double loss : losses) total += loss;
  return total;
}

template <typename T>
double split_rows(const Problem& problem, T* logits, at::TensorOptions options, bool gradient, double scale,
                  RowReducer& reducer) {
  at::Tensor maxima = at::empty({problem.rows}, options);
  T* maximum = maxima.mutable_data_ptr<T>();
  at::parallel_for(0, problem.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      maximum[r] = problem.counted(r) ? maximum_of(logits + r * problem.width, problem.filled) : T(0);
  });
  reducer.max(maxima);

  // Row 0: sums of exponentials. Row 1: the target's logit, from the rank that has it.
  at::Tensor parts = at::empty({2, problem.rows}, options);
  T* sums = parts.mutable_data_ptr<T>();
  T* target_logits = sums + problem.rows;
  at::parallel_for(0, problem.rows, 4, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      T* row = logits + r * problem.width;
      sums[r] = target_logits[r] = T(0);
      if (!problem.counted(r)) continue;
      if (const int64_t column = problem.column(r); column >= 0) target_logits[r] = row[column];
      sums[r] = static_cast<T>(gradient ? store_exponentials(row, problem.filled, maximum[r])
                                        : sum_exponentials(row, problem.filled, maximum[r]));
    }
  });
  reducer.sum(parts);

  if (gradient)
    at::parallel_for(0, problem.rows, 4, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        T* row = logits + r * problem.width;
        if (problem.counted(r)) {
          finish_row(problem, r, row, static_cast<double>(sums[r]), scale);
        } else {
          std::fill_n(row, problem.width, T(0));
        }
      }
    });
  double total = 0;
  for (int64_t r = 0; r < problem.rows; ++r)
    if (problem.counted(r))
      total += std::log(static_cast<double>(sums[r])) + static_cast<double>(maximum[r]) -
               static_cast<double>(target_logits[r]);
  return total;
}

double cross_entropy(const at::Tensor& logits, const CrossEntropyTargets& targets, bool gradient, double scale,
                     RowReducer* reducer) {
  const Problem problem = describe(logits, targets);
  return with_floating_type(logits, [&](auto zero) -> double {
    using T = decltype(zero);
    T* data = gradient ? logits.mutable_data_ptr<T>() : const_cast<T*>(logits.const_data_ptr<T>());
    if (reducer != nullptr) return split_rows(problem, data, logits.options(), gradient, scale, *reducer);
    PACELINE_CHECK(targets.first_column == 0 && problem.filled == targets.vocabulary);
    return whole_rows(problem, data, gradient, scale);
  });
}

}  // namespace

double cross_entropy_forward_backward(const at::Tensor& logits, const CrossEntropyTargets& targets, double scale,
                                      RowReducer* reducer) {
  return cross_entropy(logits, targets, true, scale, reducer);
}

double cross_entropy_forward(const at::Tensor& logits, const CrossEntropyTargets& targets, RowReducer* reducer) {
  return cross_entropy(logits, targets, false, 0, reducer);
}

}  // namespace paceline
