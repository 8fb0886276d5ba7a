#include "paceline/ops/gelu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

#include <numbers>

#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

constexpr int64_t grain = 4096;

// x (1 + tanh(z)) / 2 = x sigmoid(2 z), with z = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
constexpr T slope_at_zero = T(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
template <typename T>
constexpr T cubic = T(0.044715);

template <typename T>
PACELINE_INLINE void forward_body(const T* x, int64_t count, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T v = x[i];
    y[i] = v * vector_sigmoid(slope_at_zero<T> * v * (T(1) + cubic<T> * v * v));
  }
}

template <typename T>
PACELINE_INLINE void backward_body(const T* dy, const T* x, int64_t count, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T v = x[i];
    const T s = vector_sigmoid(slope_at_zero<T> * v * (T(1) + cubic<T> * v * v));
    const T slope = slope_at_zero<T> * (T(1) + T(3) * cubic<T> * v * v);
    dx[i] = dy[i] * s * (T(1) + v * (T(1) - s) * slope);
  }
}

PACELINE_SIMD void forward_span(const float* x, int64_t count, float* y) { forward_body(x, count, y); }
PACELINE_SIMD void forward_span(const double* x, int64_t count, double* y) { forward_body(x, count, y); }
PACELINE_SIMD void backward_span(const float* dy, const float* x, int64_t count, float* dx) {
  backward_body(dy, x, count, dx);
}
PACELINE_SIMD void backward_span(const double* dy, const double* x, int64_t count, double* dx) {
  backward_body(dy, x, count, dx);
}

}  // namespace

at::Tensor gelu_forward(const at::Tensor& x, GeluKind kind) {
  if (kind == GeluKind::erf) return at::gelu(x);
  PACELINE_CHECK(x.is_contiguous());
  at::Tensor y = at::empty_like(x);
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, x.numel(), grain, [&](int64_t first, int64_t last) {
      forward_span(in + first, last - first, out + first);
    });
  });
  return y;
}

void gelu_backward(const at::Tensor& dy, const at::Tensor& x, GeluKind kind, const at::Tensor& dx) {
  if (kind == GeluKind::erf) {
    at::Tensor out = dx;
    at::gelu_backward_out(out, dy, x);
    return;
  }
  PACELINE_CHECK(dy.is_contiguous() && x.is_contiguous() && dx.is_contiguous());
  PACELINE_CHECK(dy.numel() == x.numel() && dx.numel() == x.numel());
  with_floating_type(x, [&](auto zero) {
    using T = decltype(zero);
    const T* d = dy.const_data_ptr<T>();
    const T* in = x.const_data_ptr<T>();
    T* out = dx.mutable_data_ptr<T>();
    at::parallel_for(0, x.numel(), grain, [&](int64_t first, int64_t last) {
      backward_span(d + first, in + first, last - first, out + first);
    });
  });
}

}  // namespace paceline
