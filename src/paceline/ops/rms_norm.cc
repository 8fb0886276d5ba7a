#include "paceline/ops/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "paceline/ops/floating.h"
#include "paceline/ops/row_blocks.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

template <typename T>
PACELINE_INLINE void forward_body(const T* x, const T* weight, int64_t rows, int64_t width, T epsilon, T* y, T* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * width;
    T* out = y + r * width;
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += in[i] * in[i];
    const T scale = T(1) / std::sqrt(squares / T(width) + epsilon);
    rstd[r] = scale;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] = in[i] * scale * weight[i];
  }
}

// With n = x rstd and g = dy weight: dx = rstd (g - n mean(g n)), dweight = the sum over rows of dy n.
template <typename T, bool accumulate>
PACELINE_INLINE void backward_body(const T* dy, const T* x, const T* rstd, const T* weight, int64_t rows, int64_t width,
                                   T* dx, T* grad_weight) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* d = dy + r * width;
    const T* in = x + r * width;
    T* out = dx + r * width;
    const T scale = rstd[r];
    T dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; ++i) dot += d[i] * weight[i] * in[i];
    const T factor = dot * scale * scale * scale / T(width);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T gradient = d[i] * weight[i] * scale - in[i] * factor;
      grad_weight[i] += d[i] * in[i] * scale;
      out[i] = accumulate ? out[i] + gradient : gradient;
    }
  }
}

PACELINE_SIMD void forward_rows(const float* x, const float* weight, int64_t rows, int64_t width, float epsilon,
                                float* y, float* rstd) {
  forward_body(x, weight, rows, width, epsilon, y, rstd);
}
PACELINE_SIMD void forward_rows(const double* x, const double* weight, int64_t rows, int64_t width, double epsilon,
                                double* y, double* rstd) {
  forward_body(x, weight, rows, width, epsilon, y, rstd);
}
PACELINE_SIMD void backward_rows(const float* dy, const float* x, const float* rstd, const float* weight, int64_t rows,
                                 int64_t width, float* dx, bool accumulate, float* grad_weight) {
  if (accumulate) {
    backward_body<float, true>(dy, x, rstd, weight, rows, width, dx, grad_weight);
  } else {
    backward_body<float, false>(dy, x, rstd, weight, rows, width, dx, grad_weight);
  }
}
PACELINE_SIMD void backward_rows(const double* dy, const double* x, const double* rstd, const double* weight,
                                 int64_t rows, int64_t width, double* dx, bool accumulate, double* grad_weight) {
  if (accumulate) {
    backward_body<double, true>(dy, x, rstd, weight, rows, width, dx, grad_weight);
  } else {
    backward_body<double, false>(dy, x, rstd, weight, rows, width, dx, grad_weight);
  }
}

}  // namespace

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const int64_t rows = rows_of(x);
  const int64_t width = x.size(-1);
  PACELINE_CHECK(weight.is_contiguous() && weight.numel() == width && weight.scalar_type() == x.scalar_type());
  RmsNormOutput output{at::empty_like(x), at::empty({rows}, x.options())};
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    const T* w = weight.const_data_ptr<T>();
    T* y = output.y.mutable_data_ptr<T>();
    T* rstd = output.rstd.mutable_data_ptr<T>();
    at::parallel_for(0, rows, 16, [&](int64_t first, int64_t last) {
      forward_rows(in + first * width, w, last - first, width, T(epsilon), y + first * width, rstd + first);
    });
  });
  return output;
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
                       const at::Tensor& dx, bool accumulate_input, const at::Tensor& grad_weight,
                       bool accumulate_weight) {
  const int64_t rows = rows_of(x);
  const int64_t width = x.size(-1);
  PACELINE_CHECK(dy.is_contiguous() && dx.is_contiguous() && dy.numel() == x.numel() && dx.numel() == x.numel());
  PACELINE_CHECK(rstd.numel() == rows && weight.is_contiguous() && weight.numel() == width);
  PACELINE_CHECK(grad_weight.is_contiguous() && grad_weight.numel() == width);
  PACELINE_CHECK(!(accumulate_input && dx.is_same(dy)));
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* d = dy.const_data_ptr<T>();
    const T* in = x.const_data_ptr<T>();
    const T* scale = rstd.const_data_ptr<T>();
    const T* w = weight.const_data_ptr<T>();
    T* out = dx.mutable_data_ptr<T>();
    sum_over_row_blocks(rows, width, grad_weight.mutable_data_ptr<T>(), accumulate_weight,
                        [&](int64_t first, int64_t last, T* sums) {
                          backward_rows(d + first * width, in + first * width, scale + first, w, last - first, width,
                                        out + first * width, accumulate_input, sums);
                        });
  });
}

}  // namespace paceline
