#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include "oracle.h"
#include "paceline/ops/add.h"
#include "paceline/ops/gelu.h"
#include "paceline/ops/swiglu.h"

namespace paceline {
namespace {

class Activation : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Activation, SwigluEqualsAutograd) {
  for (const int64_t ffn : {1, 7, 64, 101}) {
    const at::Tensor gate_up = random_tensor({3, 9, 2 * ffn}, 1) * 6;
    const at::Tensor dy = random_tensor({3, 9, ffn}, 2);
    const auto function = [ffn](const std::vector<at::Tensor>& i) {
      return at::silu(i[0].narrow(-1, 0, ffn)) * i[0].narrow(-1, ffn, ffn);
    };
    const AutogradResult expected = autograd(function, {gate_up}, dy);
    const at::Tensor own = gate_up.to(GetParam());
    EXPECT_LT(relative_error(swiglu_forward(own), expected.y), tolerance(GetParam()));
    const at::Tensor gradient = at::empty_like(own);
    swiglu_backward(dy.to(GetParam()), own, gradient);
    EXPECT_LT(relative_error(gradient, expected.gradients[0]), tolerance(GetParam()));
    const at::Tensor in_place = own.clone();
    swiglu_backward(dy.to(GetParam()), in_place, in_place);
    EXPECT_TRUE(in_place.equal(gradient));
  }
}

TEST_P(Activation, SwigluOfLargeGatesIsFinite) {
  for (const double gate : {-1000.0, -90.0, 90.0, 1000.0}) {
    const at::Tensor gate_up = at::empty({1, 2}, GetParam());
    gate_up.narrow(1, 0, 1).fill_(gate);
    gate_up.narrow(1, 1, 1).fill_(2);
    EXPECT_NEAR(swiglu_forward(gate_up).item<double>(), gate > 0 ? 2 * gate : 0, 1e-4);
    const at::Tensor gradient = at::empty({1, 2}, GetParam());
    swiglu_backward(at::empty({1, 1}, GetParam()).fill_(1), gate_up, gradient);
    EXPECT_NEAR(gradient[0][0].item<double>(), gate > 0 ? 2 : 0, 1e-4);
    EXPECT_NEAR(gradient[0][1].item<double>(), gate > 0 ? gate : 0, 1e-4);
  }
}

TEST_P(Activation, GeluEqualsAutograd) {
  const at::Tensor x = random_tensor({5, 77}, 1) * 3;
  const at::Tensor dy = random_tensor({5, 77}, 2);
  for (const GeluKind kind : {GeluKind::tanh, GeluKind::erf}) {
    const auto function = [kind](const std::vector<at::Tensor>& i) {
      if (kind == GeluKind::erf) return i[0] * 0.5 * (1 + (i[0] * std::sqrt(0.5)).erf());
      return i[0] * 0.5 * (1 + ((i[0] + 0.044715 * i[0].pow(3)) * std::sqrt(2 / M_PI)).tanh());
    };
    const AutogradResult expected = autograd(function, {x}, dy);
    EXPECT_LT(relative_error(gelu_forward(x.to(GetParam()), kind), expected.y), tolerance(GetParam()));
    const at::Tensor gradient = dy.to(GetParam(), false, true);
    gelu_backward(gradient, x.to(GetParam()), kind, gradient);
    EXPECT_LT(relative_error(gradient, expected.gradients[0]), tolerance(GetParam()));
  }
}

TEST_P(Activation, AddAndBias) {
  const at::Tensor a = random_tensor({3, 41, 10}, 1, GetParam());
  const at::Tensor b = random_tensor({3, 41, 10}, 2, GetParam());
  const at::Tensor bias = random_tensor({10}, 3, GetParam());
  EXPECT_TRUE(add_forward(a, b).equal(a + b));
  const at::Tensor sum = a.clone();
  add_into(sum, b);
  EXPECT_TRUE(sum.equal(a + b));
  const at::Tensor shifted = a.clone();
  add_bias_forward(shifted, bias);
  EXPECT_TRUE(shifted.equal(a + bias));
  const at::Tensor gradient = bias.clone();
  add_bias_backward(a, gradient, true);
  EXPECT_LT(relative_error(gradient, a.to(at::kDouble).view({-1, 10}).sum(0) + bias), tolerance(GetParam()));
  add_bias_backward(a, gradient, false);
  EXPECT_LT(relative_error(gradient, a.to(at::kDouble).view({-1, 10}).sum(0)), tolerance(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Types, Activation, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
