#include "paceline/ops/linear.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "oracle.h"

namespace paceline {
namespace {

class Linear : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Linear, EqualsAutograd) {
  for (const auto [rows, in, out] : {std::array<int64_t, 3>{7, 13, 5}, {1, 64, 96}, {130, 33, 257}}) {
    const at::Tensor x = random_tensor({2, rows, in}, 1);
    const at::Tensor weight = random_tensor({out, in}, 2);
    const at::Tensor bias = random_tensor({out}, 3);
    const at::Tensor dy = random_tensor({2, rows, out}, 4);
    const AutogradResult expected =
        autograd([](const auto& i) { return at::linear(i[0], i[1], i[2]); }, {x, weight, bias}, dy);
    const auto as = [&](const at::Tensor& t) { return t.to(GetParam()); };

    EXPECT_LT(relative_error(linear_forward(as(x), as(weight), as(bias)), expected.y), tolerance(GetParam()));
    EXPECT_LT(relative_error(linear_forward(as(x), as(weight)), expected.y - bias), tolerance(GetParam()));
    EXPECT_LT(relative_error(linear_backward_input(as(dy), as(weight)), expected.gradients[0]), tolerance(GetParam()));

    at::Tensor grad_weight = as(random_tensor({out, in}, 5));
    at::Tensor grad_bias = as(random_tensor({out}, 6));
    const void* storage = grad_weight.const_data_ptr();
    linear_backward_weight(as(dy), as(x), grad_weight, grad_bias, false);
    EXPECT_LT(relative_error(grad_weight, expected.gradients[1]), tolerance(GetParam()));
    EXPECT_LT(relative_error(grad_bias, expected.gradients[2]), tolerance(GetParam()));
    linear_backward_weight(as(dy), as(x), grad_weight, grad_bias, true);
    EXPECT_LT(relative_error(grad_weight, expected.gradients[1] * 2), tolerance(GetParam()));
    EXPECT_LT(relative_error(grad_bias, expected.gradients[2] * 2), tolerance(GetParam()));
    EXPECT_EQ(grad_weight.const_data_ptr(), storage);
  }
}

TEST_P(Linear, WritesIntoAPartOfALargerBuffer) {
  const at::Tensor x = random_tensor({9, 12}, 1, GetParam());
  const at::Tensor dy = random_tensor({9, 6}, 2, GetParam());
  at::Tensor buffer = random_tensor({3 * 6 * 12}, 3, GetParam());
  const at::Tensor before = buffer.clone();
  linear_backward_weight(dy, x, buffer.narrow(0, 72, 72).view({6, 12}), {}, true);
  EXPECT_LT(relative_error(buffer.narrow(0, 72, 72).view({6, 12}),
                           before.narrow(0, 72, 72).view({6, 12}) + dy.t().matmul(x)),
            tolerance(GetParam()));
  EXPECT_TRUE(buffer.narrow(0, 0, 72).equal(before.narrow(0, 0, 72)));
  EXPECT_TRUE(buffer.narrow(0, 144, 72).equal(before.narrow(0, 144, 72)));
}

INSTANTIATE_TEST_SUITE_P(Types, Linear, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
