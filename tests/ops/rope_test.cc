#include "paceline/ops/rope.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>

#include "oracle.h"
#include "paceline/base/error.h"

namespace paceline {
namespace {

// LLaMA 3.1's scaling: high frequencies stay, low ones are divided by 8, the band between is interpolated.
TEST(Rope, Llama3Scaling) {
  const std::vector<double> plain = rope_frequencies(128, 500000);
  const std::vector<double> scaled = rope_frequencies(128, 500000, RopeScaling{});
  const std::array<double, 6> between = {1.207484, 1.553415, 2.026313, 2.694530, 3.684253, 5.257327};
  for (int i = 0; i < 64; ++i) {
    const double divisor = i <= 28 ? 1 : i <= 34 ? between[i - 29] : 8;
    EXPECT_NEAR(plain[i] / scaled[i], divisor, 1e-6) << i;
  }
  const std::vector<double> small_plain = rope_frequencies(16, 500000);
  const std::vector<double> small = rope_frequencies(16, 500000, RopeScaling{});
  const std::array<double, 8> divisors = {1, 1, 1, 1, 2.694530, 8, 8, 8};
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(small_plain[i] / small[i], divisors[i], 1e-6) << i;
}

TEST(Rope, TablesAreRoundedOnce) {
  const std::vector<double> frequencies = rope_frequencies(16, 10000);
  EXPECT_EQ(frequencies[0], 1.0);
  const RopeTables exact = rope_tables(frequencies, 32769, at::kDouble);
  EXPECT_NEAR(exact.cos[15962][0].item<double>(), -0.9080, 5e-5);
  EXPECT_NEAR(exact.cos[15936][0].item<double>(), -0.2680, 5e-5);
  const std::array<std::pair<at::ScalarType, double>, 3> types = {
      {{at::kFloat, std::ldexp(1, -24)}, {at::kBFloat16, std::ldexp(1, -8)}, {at::kHalf, std::ldexp(1, -11)}}};
  for (const auto& [type, bound] : types) {
    const RopeTables tables = rope_tables(frequencies, 32769, type);
    for (const int64_t position : {0, 256, 257, 4095, 15962, 32768}) {
      EXPECT_LE((tables.cos[position].to(at::kDouble) - exact.cos[position]).abs().max().item<double>(), bound);
      EXPECT_LE((tables.sin[position].to(at::kDouble) - exact.sin[position]).abs().max().item<double>(), bound);
    }
  }
}

class RopeRotation : public testing::TestWithParam<at::ScalarType> {};

/// Hugging Face's LLaMA: x cos + rotate_half(x) sin on [B, T, heads, head_dim].
at::Tensor rotate_half_form(const at::Tensor& qkv, int64_t rotated, int64_t head_dim, const RopeTables& tables,
                            int64_t first_position) {
  const int64_t length = qkv.size(1);
  const at::Tensor x = qkv.view({qkv.size(0), length, -1, head_dim});
  const at::Tensor cos = tables.cos.narrow(0, first_position, length).repeat({1, 2}).unsqueeze(1);
  const at::Tensor sin = tables.sin.narrow(0, first_position, length).repeat({1, 2}).unsqueeze(1);
  const at::Tensor heads = x.narrow(2, 0, rotated);
  const int64_t half = head_dim / 2;
  const at::Tensor turned = at::cat({-heads.narrow(3, half, half), heads.narrow(3, 0, half)}, 3);
  return at::cat({heads * cos + turned * sin, x.narrow(2, rotated, x.size(2) - rotated)}, 2).view(qkv.sizes());
}

TEST_P(RopeRotation, EqualsAutograd) {
  for (const int64_t head_dim : {16, 32, 64, 128}) {
    const RopeTables tables = rope_tables(rope_frequencies(head_dim, 10000), 20, at::kDouble);
    const RopeTables own = {tables.cos.to(GetParam()), tables.sin.to(GetParam())};
    for (const int64_t first_position : {0, 13}) {
      const at::Tensor qkv = random_tensor({2, 7, (4 + 2 * 2) * head_dim}, 1);
      const at::Tensor dy = random_tensor({2, 7, (4 + 2 * 2) * head_dim}, 2);
      const AutogradResult expected = autograd(
          [&](const auto& i) { return rotate_half_form(i[0], 6, head_dim, tables, first_position); }, {qkv}, dy);
      const at::Tensor rotated = qkv.to(GetParam(), false, true);
      rope_forward(rotated, own, 4, 2, first_position);
      EXPECT_LT(relative_error(rotated, expected.y), tolerance(GetParam()));
      const at::Tensor gradient = dy.to(GetParam(), false, true);
      rope_backward(gradient, own, 4, 2, first_position);
      EXPECT_LT(relative_error(gradient, expected.gradients[0]), tolerance(GetParam()));
    }
  }
}

TEST_P(RopeRotation, BeyondTheTablesIsAnError) {
  const RopeTables tables = rope_tables(rope_frequencies(16, 10000), 8, GetParam());
  const at::Tensor qkv = random_tensor({1, 4, 48}, 1, GetParam());
  EXPECT_NO_THROW(rope_forward(qkv, tables, 1, 1, 4));
  EXPECT_THROW(rope_forward(qkv, tables, 1, 1, 5), Error);
}

INSTANTIATE_TEST_SUITE_P(Types, RopeRotation, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
