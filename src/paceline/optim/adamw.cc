#include "paceline/optim/adamw.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "paceline/ops/floating.h"
#include "paceline/ops/simd.h"

namespace paceline {
namespace {

/// The step's numbers, in the buffers' type.
template <typename T>
struct Factors {
  T multiplier;
  T keep;       ///< 1 - learning_rate x weight_decay
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T step_size;  ///< learning_rate / (1 - beta1^count)
  T inverse_root_correction;  ///< 1 / sqrt(1 - beta2^count)
  T epsilon;
};

template <typename T>
PACELINE_INLINE void update_body(T* p, const T* g, T* m, T* v, int64_t count, const Factors<T>& factors) {
  const Factors<T> f = factors;  // a copy: stores to the buffers cannot change it
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * f.multiplier;
    const T first = f.beta1 * m[i] + f.one_minus_beta1 * gradient;
    const T second = f.beta2 * v[i] + f.one_minus_beta2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * f.keep - f.step_size * first / (std::sqrt(second) * f.inverse_root_correction + f.epsilon);
  }
}

PACELINE_SIMD void update(float* p, const float* g, float* m, float* v, int64_t count, const Factors<float>& f) {
  update_body(p, g, m, v, count, f);
}
PACELINE_SIMD void update(double* p, const double* g, double* m, double* v, int64_t count, const Factors<double>& f) {
  update_body(p, g, m, v, count, f);
}

}  // namespace

void adamw_step(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
                const at::Tensor& second_moment, int64_t count, const AdamWSettings& settings,
                double gradient_multiplier) {
  PACELINE_CHECK(count >= 1);
  for (const at::Tensor* tensor : {&gradient, &first_moment, &second_moment})
    PACELINE_CHECK(tensor->is_contiguous() && tensor->numel() == parameter.numel() &&
                   tensor->scalar_type() == parameter.scalar_type());
  PACELINE_CHECK(parameter.is_contiguous());
  with_floating_type(parameter, [&](auto zero) {
    using T = decltype(zero);
    const double steps = static_cast<double>(count);
    const Factors<T> factors{
        .multiplier = T(gradient_multiplier),
        .keep = T(1 - settings.learning_rate * settings.weight_decay),
        .beta1 = T(settings.beta1),
        .one_minus_beta1 = T(1 - settings.beta1),
        .beta2 = T(settings.beta2),
        .one_minus_beta2 = T(1 - settings.beta2),
        .step_size = T(settings.learning_rate / (1 - std::pow(settings.beta1, steps))),
        .inverse_root_correction = T(1 / std::sqrt(1 - std::pow(settings.beta2, steps))),
        .epsilon = T(settings.epsilon),
    };
    T* p = parameter.mutable_data_ptr<T>();
    const T* g = gradient.const_data_ptr<T>();
    T* m = first_moment.mutable_data_ptr<T>();
    T* v = second_moment.mutable_data_ptr<T>();
    at::parallel_for(0, parameter.numel(), 1 << 14, [&](int64_t first, int64_t last) {
      update(p + first, g + first, m + first, v + first, last - first, factors);
    });
  });
}

}  // namespace paceline
