#include "paceline/ops/layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "paceline/ops/floating.h"
#include "paceline/ops/row_blocks.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

template <typename T>
PACELINE_INLINE void forward_body(const T* x, const T* weight, const T* bias, int64_t rows, int64_t width, T epsilon,
                                  T* y, T* mean, T* rstd) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * width;
    T* out = y + r * width;
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += in[i];
    const T centre = sum / T(width);
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; ++i) squares += (in[i] - centre) * (in[i] - centre);
    const T scale = T(1) / std::sqrt(squares / T(width) + epsilon);
    mean[r] = centre;
    rstd[r] = scale;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] = (in[i] - centre) * scale * weight[i] + bias[i];
  }
}

// With n = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - n mean(g n)); dweight and dbias are the sums
// over rows of dy n and dy, side by side in `sums`.
template <typename T, bool accumulate>
PACELINE_INLINE void backward_body(const T* dy, const T* x, const T* mean, const T* rstd, const T* weight, int64_t rows,
                                   int64_t width, T* dx, T* sums) {
  T* grad_weight = sums;
  T* grad_bias = sums + width;
  for (int64_t r = 0; r < rows; ++r) {
    const T* d = dy + r * width;
    const T* in = x + r * width;
    T* out = dx + r * width;
    const T centre = mean[r];
    const T scale = rstd[r];
    T sum = 0;
    T dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < width; ++i) {
      const T g = d[i] * weight[i];
      sum += g;
      dot += g * (in[i] - centre);
    }
    const T shift = sum * scale / T(width);
    const T factor = dot * scale * scale / T(width);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T n = (in[i] - centre) * scale;
      const T gradient = d[i] * weight[i] * scale - shift - n * factor;
      grad_weight[i] += d[i] * n;
      grad_bias[i] += d[i];
      out[i] = accumulate ? out[i] + gradient : gradient;
    }
  }
}

PACELINE_SIMD void forward_rows(const float* x, const float* weight, const float* bias, int64_t rows, int64_t width,
                                float epsilon, float* y, float* mean, float* rstd) {
  forward_body(x, weight, bias, rows, width, epsilon, y, mean, rstd);
}
PACELINE_SIMD void forward_rows(const double* x, const double* weight, const double* bias, int64_t rows, int64_t width,
                                double epsilon, double* y, double* mean, double* rstd) {
  forward_body(x, weight, bias, rows, width, epsilon, y, mean, rstd);
}
PACELINE_SIMD void backward_rows(const float* dy, const float* x, const float* mean, const float* rstd,
                                 const float* weight, int64_t rows, int64_t width, float* dx, bool accumulate,
                                 float* sums) {
  if (accumulate) {
    backward_body<float, true>(dy, x, mean, rstd, weight, rows, width, dx, sums);
  } else {
    backward_body<float, false>(dy, x, mean, rstd, weight, rows, width, dx, sums);
  }
}
PACELINE_SIMD void backward_rows(const double* dy, const double* x, const double* mean, const double* rstd,
                                 const double* weight, int64_t rows, int64_t width, double* dx, bool accumulate,
                                 double* sums) {
  if (accumulate) {
    backward_body<double, true>(dy, x, mean, rstd, weight, rows, width, dx, sums);
  } else {
    backward_body<double, false>(dy, x, mean, rstd, weight, rows, width, dx, sums);
  }
}

}  // namespace

LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                   double epsilon) {
  const int64_t rows = rows_of(x);
  const int64_t width = x.size(-1);
  PACELINE_CHECK(weight.is_contiguous() && weight.numel() == width && weight.scalar_type() == x.scalar_type());
  PACELINE_CHECK(bias.is_contiguous() && bias.numel() == width && bias.scalar_type() == x.scalar_type());
  LayerNormOutput output{at::empty_like(x), at::empty({rows}, x.options()), at::empty({rows}, x.options())};
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    const T* w = weight.const_data_ptr<T>();
    const T* b = bias.const_data_ptr<T>();
    T* y = output.y.mutable_data_ptr<T>();
    T* mean = output.mean.mutable_data_ptr<T>();
    T* rstd = output.rstd.mutable_data_ptr<T>();
    at::parallel_for(0, rows, 16, [&](int64_t first, int64_t last) {
      forward_rows(in + first * width, w, b, last - first, width, T(epsilon), y + first * width, mean + first,
                   rstd + first);
    });
  });
  return output;
}

void layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                         const at::Tensor& weight, const at::Tensor& dx, bool accumulate_input,
                         const at::Tensor& grad_weight, const at::Tensor& grad_bias, bool accumulate_weight) {
  const int64_t rows = rows_of(x);
  const int64_t width = x.size(-1);
  PACELINE_CHECK(dy.is_contiguous() && dx.is_contiguous() && dy.numel() == x.numel() && dx.numel() == x.numel());
  PACELINE_CHECK(mean.numel() == rows && rstd.numel() == rows && weight.is_contiguous() && weight.numel() == width);
  PACELINE_CHECK(grad_weight.is_contiguous() && grad_weight.numel() == width);
  PACELINE_CHECK(grad_bias.is_contiguous() && grad_bias.numel() == width);
  PACELINE_CHECK(!(accumulate_input && dx.is_same(dy)));
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* d = dy.const_data_ptr<T>();
    const T* in = x.const_data_ptr<T>();
    const T* centre = mean.const_data_ptr<T>();
    const T* scale = rstd.const_data_ptr<T>();
    const T* w = weight.const_data_ptr<T>();
    T* out = dx.mutable_data_ptr<T>();
    std::vector<T> totals(2 * width);
    sum_over_row_blocks(rows, 2 * width, totals.data(), false, [&](int64_t first, int64_t last, T* sums) {
      backward_rows(d + first * width, in + first * width, centre + first, scale + first, w, last - first, width,
                    out + first * width, accumulate_input, sums);
    });
    T* weight_out = grad_weight.mutable_data_ptr<T>();
    T* bias_out = grad_bias.mutable_data_ptr<T>();
    for (int64_t i = 0; i < width; ++i) {
      weight_out[i] = accumulate_weight ? weight_out[i] + totals[i] : totals[i];
      bias_out[i] = accumulate_weight ? bias_out[i] + totals[width + i] : totals[width + i];
    }
  });
}

}  // namespace paceline
