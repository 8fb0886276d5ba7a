#include "paceline/ops/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

template <typename T>
PACELINE_INLINE void forward_body(const T* gate_up, int64_t rows, int64_t width, T* y) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + r * 2 * width;
    const T* up = gate + width;
    T* out = y + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) out[i] = gate[i] * vector_sigmoid(gate[i]) * up[i];
  }
}

// d silu(g) / dg = s + g s (1 - s), s the sigmoid. An element's inputs are read before its outputs are written.
template <typename T>
PACELINE_INLINE void backward_body(const T* dy, const T* gate_up, int64_t rows, int64_t width, T* d_gate_up) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + r * 2 * width;
    const T* up = gate + width;
    const T* d = dy + r * width;
    T* d_gate = d_gate_up + r * 2 * width;
    T* d_up = d_gate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const T g = gate[i];
      const T s = vector_sigmoid(g);
      const T silu = g * s;
      const T slope = s + silu * (T(1) - s);
      const T u = up[i];
      d_gate[i] = d[i] * u * slope;
      d_up[i] = d[i] * silu;
    }
  }
}

PACELINE_SIMD void forward_rows(const float* gate_up, int64_t rows, int64_t width, float* y) {
  forward_body(gate_up, rows, width, y);
}
PACELINE_SIMD void forward_rows(const double* gate_up, int64_t rows, int64_t width, double* y) {
  forward_body(gate_up, rows, width, y);
}
PACELINE_SIMD void backward_rows(const float* dy, const float* gate_up, int64_t rows, int64_t width, float* d_gate_up) {
  backward_body(dy, gate_up, rows, width, d_gate_up);
}
PACELINE_SIMD void backward_rows(const double* dy, const double* gate_up, int64_t rows, int64_t width,
                                 double* d_gate_up) {
  backward_body(dy, gate_up, rows, width, d_gate_up);
}

}  // namespace

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  const int64_t rows = rows_of(gate_up);
  const int64_t width = gate_up.size(-1) / 2;
  PACELINE_CHECK(gate_up.size(-1) == 2 * width);
  std::vector<int64_t> sizes = gate_up.sizes().vec();
  sizes.back() = width;
  at::Tensor y = at::empty(sizes, gate_up.options());
  with_floating_type(gate_up, [&](auto zero) {
    using T = decltype(zero);
    const T* in = gate_up.const_data_ptr<T>();
    T* out = y.mutable_data_ptr<T>();
    at::parallel_for(0, rows, 8, [&](int64_t first, int64_t last) {
      forward_rows(in + first * 2 * width, last - first, width, out + first * width);
    });
  });
  return y;
}

void swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up, const at::Tensor& d_gate_up) {
  const int64_t rows = rows_of(dy);
  const int64_t width = dy.size(-1);
  PACELINE_CHECK(rows_of(gate_up) == rows && gate_up.size(-1) == 2 * width);
  PACELINE_CHECK(d_gate_up.is_contiguous() && d_gate_up.sizes() == gate_up.sizes());
  with_floating_type(dy, [&](auto zero) {
    using T = decltype(zero);
    const T* d = dy.const_data_ptr<T>();
    const T* in = gate_up.const_data_ptr<T>();
    T* out = d_gate_up.mutable_data_ptr<T>();
    at::parallel_for(0, rows, 8, [&](int64_t first, int64_t last) {
      backward_rows(d + first * width, in + first * 2 * width, last - first, width, out + first * 2 * width);
    });
  });
}

}  // namespace paceline
