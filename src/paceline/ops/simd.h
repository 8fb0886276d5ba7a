#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

/// Compiles a function for AVX-512, AVX2 with FMA and the baseline, chosen when the library is loaded. What it calls
/// must be inlined into it (PACELINE_INLINE). Thread sanitizer cannot run the resolvers, which
/// come before its own start.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define PACELINE_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PACELINE_SIMD
#endif
#define PACELINE_INLINE __attribute__((always_inline)) inline

namespace paceline {

/// e^x without branches, so that loops over it vectorise: within 2 units in the last place; 0 below -87.3, infinity
/// above 88.3, and NaN stays NaN. Range reduction and polynomial after Cephes' expf.
PACELINE_INLINE float vector_exp(float x) {
  constexpr float round = 12582912.0f;  // 1.5 x 2^23: rounds, and leaves the integer in the lowest bits
  const float shifted = x * 1.44269504088896341f + round;
  const float n = shifted - round;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  float result = p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
  result = x < -87.3f ? 0.0f : result;
  return x > 88.3f ? std::numeric_limits<float>::infinity() : result;
}

PACELINE_INLINE double vector_exp(double x) { return std::exp(x); }

template <typename T>
PACELINE_INLINE T vector_sigmoid(T x) {
  return T(1) / (T(1) + vector_exp(-x));
}

}  // namespace paceline
