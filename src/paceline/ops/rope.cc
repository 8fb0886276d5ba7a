#include "paceline/ops/rope.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>

#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

template <typename T>
PACELINE_INLINE void rotate_body(T* heads, int64_t head_count, int64_t half, const T* cos, const T* sin, T sign) {
  for (int64_t h = 0; h < head_count; ++h) {
    T* low = heads + h * 2 * half;
    T* high = low + half;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const T a = low[i];
      const T b = high[i];
      const T s = sin[i] * sign;
      low[i] = a * cos[i] - b * s;
      high[i] = b * cos[i] + a * s;
    }
  }
}

PACELINE_SIMD void rotate(float* heads, int64_t head_count, int64_t half, const float* cos, const float* sin,
                          float sign) {
  rotate_body(heads, head_count, half, cos, sin, sign);
}
PACELINE_SIMD void rotate(double* heads, int64_t head_count, int64_t half, const double* cos, const double* sin,
                          double sign) {
  rotate_body(heads, head_count, half, cos, sin, sign);
}

void rotate_queries_and_keys(const at::Tensor& qkv, const RopeTables& tables, int64_t heads, int64_t kv_heads,
                             int64_t first_position, double sign) {
  PACELINE_CHECK(qkv.dim() == 3 && qkv.is_contiguous() && first_position >= 0);
  PACELINE_CHECK(tables.cos.is_contiguous() && tables.sin.is_contiguous());
  PACELINE_CHECK(tables.cos.scalar_type() == qkv.scalar_type() && tables.sin.scalar_type() == qkv.scalar_type());
  const int64_t length = qkv.size(1);
  const int64_t width = qkv.size(2);
  const int64_t half = tables.cos.size(1);
  PACELINE_CHECK(width == (heads + 2 * kv_heads) * 2 * half);
  if (first_position + length > tables.cos.size(0))
    fail("position {} is beyond the {} positions that the rotation tables were made for", first_position + length - 1,
         tables.cos.size(0));
  with_floating_type(qkv, [&](auto zero) {
    using T = decltype(zero);
    T* data = qkv.mutable_data_ptr<T>();
    const T* cos = tables.cos.const_data_ptr<T>();
    const T* sin = tables.sin.const_data_ptr<T>();
    at::parallel_for(0, qkv.size(0) * length, 16, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int64_t offset = (first_position + p % length) * half;
        rotate(data + p * width, heads + kv_heads, half, cos + offset, sin + offset, T(sign));
      }
    });
  });
}

}  // namespace

std::vector<double> rope_frequencies(int64_t head_dim, double theta, const std::optional<RopeScaling>& scaling) {
  PACELINE_CHECK(head_dim > 0 && head_dim % 2 == 0 && theta > 0);
  std::vector<double> frequencies(head_dim / 2);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling) {
      // Long waves are slowed down by the factor, short ones stay, those between are interpolated.
      const double original = static_cast<double>(scaling->original_max_position_embeddings);
      const double wavelength = 2 * std::numbers::pi / frequency;
      if (wavelength > original / scaling->low_freq_factor) {
        frequency /= scaling->factor;
      } else if (wavelength > original / scaling->high_freq_factor) {
        const double smooth = (original / wavelength - scaling->low_freq_factor) /
                              (scaling->high_freq_factor - scaling->low_freq_factor);
        frequency = (1 - smooth) * frequency / scaling->factor + smooth * frequency;
      }
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

RopeTables rope_tables(const std::vector<double>& frequencies, int64_t positions, at::ScalarType type) {
  const int64_t half = static_cast<int64_t>(frequencies.size());
  at::Tensor cos = at::empty({positions, half}, at::kDouble);
  at::Tensor sin = at::empty({positions, half}, at::kDouble);
  double* c = cos.mutable_data_ptr<double>();
  double* s = sin.mutable_data_ptr<double>();
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies[i];
      c[p * half + i] = std::cos(angle);
      s[p * half + i] = std::sin(angle);
    }
  return {cos.to(type), sin.to(type)};
}

void rope_forward(const at::Tensor& qkv, const RopeTables& tables, int64_t heads, int64_t kv_heads,
                  int64_t first_position) {
  rotate_queries_and_keys(qkv, tables, heads, kv_heads, first_position, 1);
}

void rope_backward(const at::Tensor& dqkv, const RopeTables& tables, int64_t heads, int64_t kv_heads,
                   int64_t first_position) {
  rotate_queries_and_keys(dqkv, tables, heads, kv_heads, first_position, -1);
}

}  // namespace paceline
