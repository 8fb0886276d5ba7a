#include "paceline/optim/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "paceline/base/philox.h"

namespace paceline {
namespace {

struct Buffers {
  at::Tensor parameter, gradient, first, second;
};

Buffers make(int64_t size, at::ScalarType type) {
  at::Tensor values = at::empty({2, size}, at::kDouble);
  for (int64_t i = 0; i < 2 * size; ++i) values.mutable_data_ptr<double>()[i] = random_normal(5, i);
  return {values[0].to(type).clone(), values[1].to(type).clone(), at::zeros({size}, type), at::zeros({size}, type)};
}

class AdamW : public testing::TestWithParam<at::ScalarType> {};

TEST_P(AdamW, FollowsTheFormula) {
  const AdamWSettings settings{
      .learning_rate = 3e-2, .beta1 = 0.9, .beta2 = 0.97, .epsilon = 1e-6, .weight_decay = 0.2};
  for (const int64_t size : {1, 17, 40000}) {
    const Buffers b = make(size, GetParam());
    const double rounding = GetParam() == at::kDouble ? 1e-13 : 1e-6;
    at::Tensor start = b.parameter.to(at::kDouble).clone();
    at::Tensor gradient = b.gradient.to(at::kDouble);
    std::vector<double> p(start.const_data_ptr<double>(), start.const_data_ptr<double>() + size), m(size), v(size);
    for (int64_t step = 1; step <= 5; ++step) {
      adamw_step(b.parameter, b.gradient, b.first, b.second, step, settings, 0.5);
      for (int64_t i = 0; i < size; ++i) {
        const double g = 0.5 * gradient.const_data_ptr<double>()[i];
        p[i] *= 1 - settings.learning_rate * settings.weight_decay;
        m[i] += (1 - settings.beta1) * (g - m[i]);
        v[i] = settings.beta2 * v[i] + (1 - settings.beta2) * g * g;
        const double denominator = std::sqrt(v[i]) / std::sqrt(1 - std::pow(settings.beta2, step)) + settings.epsilon;
        p[i] -= settings.learning_rate / (1 - std::pow(settings.beta1, step)) * m[i] / denominator;
      }
    }
    const at::Tensor result = b.parameter.to(at::kDouble);
    for (int64_t i = 0; i < size; ++i)
      ASSERT_NEAR(result.const_data_ptr<double>()[i], p[i], rounding * (1 + std::abs(p[i]))) << i;
  }
}

// torch.optim.AdamW(lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01), three steps in float64 from p = (1, -2),
// gradients (0.5, -1), (0.25, 3), (-2, 0).
TEST_P(AdamW, EqualsTorch) {
  Buffers b = make(2, GetParam());
  const AdamWSettings settings{
      .learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};
  const double starts[2] = {1, -2};
  const double gradients[3][2] = {{0.5, -1}, {0.25, 3}, {-2, 0}};
  const double golden[3][2] = {
      {0.89900000199999996, -1.898000001},
      {0.80488304047546233, -1.9455209841077441},
      {0.84622436244636745, -1.981776480259877}};
  for (int i = 0; i < 2; ++i) b.parameter[i].fill_(starts[i]);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < 2; ++i) b.gradient[i].fill_(gradients[step][i]);
    adamw_step(b.parameter, b.gradient, b.first, b.second, step + 1, settings);
    for (int i = 0; i < 2; ++i)
      EXPECT_NEAR(b.parameter[i].item<double>(), golden[step][i], GetParam() == at::kDouble ? 1e-14 : 3e-7);
  }
}

TEST_P(AdamW, ThreadsDoNotChangeTheBits) {
  const int threads = at::get_num_threads();
  const auto run = [](int count) {
    at::set_num_threads(count);
    const Buffers b = make(100003, GetParam());
    adamw_step(b.parameter, b.gradient, b.first, b.second, 1, {});
    return b.parameter;
  };
  EXPECT_TRUE(run(1).equal(run(2)));
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Types, AdamW, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
