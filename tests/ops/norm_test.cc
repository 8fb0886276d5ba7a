#include <ATen/Parallel.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "oracle.h"
#include "paceline/ops/layer_norm.h"
#include "paceline/ops/rms_norm.h"

namespace paceline {
namespace {

class Norm : public testing::TestWithParam<at::ScalarType> {};

constexpr std::array<std::array<int64_t, 2>, 4> shapes = {{{1, 7}, {3, 64}, {255, 33}, {1100, 48}}};

TEST_P(Norm, RmsEqualsAutograd) {
  for (const auto [rows, width] : shapes) {
    const at::Tensor x = random_tensor({rows, width}, 1) * 3;
    const at::Tensor weight = random_tensor({width}, 2);
    const at::Tensor dy = random_tensor({rows, width}, 3);
    const auto function = [](const std::vector<at::Tensor>& i) {
      return i[0] * (i[0].pow(2).mean(-1, true) + 1e-5).rsqrt() * i[1];
    };
    const AutogradResult expected = autograd(function, {x, weight}, dy);
    const auto as = [&](const at::Tensor& t) { return t.to(GetParam()); };

    const RmsNormOutput output = rms_norm_forward(as(x), as(weight), 1e-5);
    EXPECT_LT(relative_error(output.y, expected.y), tolerance(GetParam()));

    const at::Tensor start = as(random_tensor({rows, width}, 4));
    const at::Tensor weight_start = as(random_tensor({width}, 5));
    for (const bool accumulate : {false, true}) {
      const at::Tensor dx = start.clone();
      const at::Tensor grad_weight = weight_start.clone();
      rms_norm_backward(as(dy), as(x), output.rstd, as(weight), dx, accumulate, grad_weight, accumulate);
      EXPECT_LT(relative_error(dx, expected.gradients[0] + (accumulate ? start : start * 0)), tolerance(GetParam()));
      EXPECT_LT(relative_error(grad_weight, expected.gradients[1] + (accumulate ? weight_start : weight_start * 0)),
                tolerance(GetParam()));
    }
    const at::Tensor in_place = as(dy).clone();
    const at::Tensor grad_weight = weight_start.clone();
    rms_norm_backward(in_place, as(x), output.rstd, as(weight), in_place, false, grad_weight, false);
    EXPECT_LT(relative_error(in_place, expected.gradients[0]), tolerance(GetParam()));
    EXPECT_LT(relative_error(grad_weight, expected.gradients[1]), tolerance(GetParam()));
  }
}

TEST_P(Norm, LayerEqualsAutograd) {
  for (const auto [rows, width] : shapes) {
    const at::Tensor x = random_tensor({rows, width}, 1) * 3 + 2;
    const at::Tensor weight = random_tensor({width}, 2);
    const at::Tensor bias = random_tensor({width}, 3);
    const at::Tensor dy = random_tensor({rows, width}, 4);
    const auto function = [width = width](const std::vector<at::Tensor>& i) {
      return at::layer_norm(i[0], {width}, i[1], i[2], 1e-5);
    };
    const AutogradResult expected = autograd(function, {x, weight, bias}, dy);
    const auto as = [&](const at::Tensor& t) { return t.to(GetParam()); };

    const LayerNormOutput output = layer_norm_forward(as(x), as(weight), as(bias), 1e-5);
    EXPECT_LT(relative_error(output.y, expected.y), tolerance(GetParam()));

    const at::Tensor start = as(random_tensor({rows, width}, 5));
    const at::Tensor weight_start = as(random_tensor({width}, 6));
    const at::Tensor bias_start = as(random_tensor({width}, 7));
    for (const bool accumulate : {false, true}) {
      const at::Tensor dx = start.clone();
      const at::Tensor grad_weight = weight_start.clone();
      const at::Tensor grad_bias = bias_start.clone();
      layer_norm_backward(as(dy), as(x), output.mean, output.rstd, as(weight), dx, accumulate, grad_weight, grad_bias,
                          accumulate);
      const double keep = accumulate ? 1 : 0;
      EXPECT_LT(relative_error(dx, expected.gradients[0] + start * keep), tolerance(GetParam()));
      EXPECT_LT(relative_error(grad_weight, expected.gradients[1] + weight_start * keep), tolerance(GetParam()));
      EXPECT_LT(relative_error(grad_bias, expected.gradients[2] + bias_start * keep), tolerance(GetParam()));
    }
  }
}

TEST_P(Norm, ThreadsDoNotChangeTheBits) {
  const at::Tensor x = random_tensor({1100, 48}, 1, GetParam());
  const at::Tensor weight = random_tensor({48}, 2, GetParam());
  const at::Tensor dy = random_tensor({1100, 48}, 3, GetParam());
  const RmsNormOutput output = rms_norm_forward(x, weight, 1e-5);
  const auto gradient = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor grad_weight = at::empty_like(weight);
    rms_norm_backward(dy, x, output.rstd, weight, dx, false, grad_weight, false);
    return grad_weight;
  };
  const int threads = at::get_num_threads();
  const at::Tensor one = gradient(1);
  EXPECT_TRUE(one.equal(gradient(2)));
  EXPECT_TRUE(one.equal(gradient(3)));
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Types, Norm, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
