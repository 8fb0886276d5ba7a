#include "paceline/ops/attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "oracle.h"

namespace paceline {
namespace {

struct Shape {
  int64_t batch, length, heads, kv_heads, head_dim;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << "B" << s.batch << " T" << s.length << " heads " << s.heads << "/" << s.kv_heads << " x " << s.head_dim;
}

at::Tensor heads_of(const at::Tensor& qkv, int64_t first, int64_t count, int64_t repeat, int64_t head_dim) {
  return qkv.view({qkv.size(0), qkv.size(1), -1, head_dim})
      .narrow(2, first, count)
      .transpose(1, 2)
      .repeat_interleave(repeat, 1);
}

at::Tensor scores_of(const at::Tensor& qkv, const Shape& s) {
  const at::Tensor mask = at::zeros({s.length, s.length}, at::kDouble)
                              .fill_(-std::numeric_limits<double>::infinity())
                              .triu(1);
  const at::Tensor q = heads_of(qkv, 0, s.heads, 1, s.head_dim);
  const at::Tensor k = heads_of(qkv, s.heads, s.kv_heads, s.heads / s.kv_heads, s.head_dim);
  return at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(s.head_dim)) + mask;
}

at::Tensor written_out(const at::Tensor& qkv, const Shape& s) {
  const at::Tensor v = heads_of(qkv, s.heads + s.kv_heads, s.kv_heads, s.heads / s.kv_heads, s.head_dim);
  return at::matmul(scores_of(qkv, s).softmax(-1), v)
      .transpose(1, 2)
      .reshape({s.batch, s.length, s.heads * s.head_dim});
}

class Attention : public testing::TestWithParam<Shape> {};

TEST_P(Attention, EqualsAutograd) {
  const Shape s = GetParam();
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const at::Tensor qkv = random_tensor({s.batch, s.length, width}, 1);
  const at::Tensor dy = random_tensor({s.batch, s.length, s.heads * s.head_dim}, 2);
  const AutogradResult expected = autograd([&](const auto& i) { return written_out(i[0], s); }, {qkv}, dy);
  const at::Tensor logsumexp = scores_of(qkv, s).logsumexp(-1);

  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor own = qkv.to(type);
    const AttentionOutput output = attention_forward(own, s.heads, s.kv_heads);
    EXPECT_LT(relative_error(output.y, expected.y), tolerance(type));
    ASSERT_EQ(output.logsumexp.sizes(), (std::vector<int64_t>{s.batch, s.heads, s.length}));
    EXPECT_LT((output.logsumexp.to(at::kDouble) - logsumexp).abs().max().item<double>(),
              type == at::kDouble ? 1e-12 : 5e-6);

    const at::Tensor gradient = at::empty_like(own).fill_(std::numeric_limits<double>::quiet_NaN());
    attention_backward(dy.to(type), own, output, s.heads, s.kv_heads, gradient);
    EXPECT_LT(relative_error(gradient, expected.gradients[0]), tolerance(type));
    for (const auto [first, count] : {std::array<int64_t, 2>{0, s.heads},
                                      {s.heads, s.kv_heads},
                                      {s.heads + s.kv_heads, s.kv_heads}}) {
      const at::Tensor part = gradient.narrow(2, first * s.head_dim, count * s.head_dim);
      // With one position the softmax is constant: queries and keys have no gradient, only rounding.
      const at::Tensor reference = expected.gradients[0].narrow(2, first * s.head_dim, count * s.head_dim);
      EXPECT_LT((part - reference).norm().item<double>(),
                2 * tolerance(type) * std::max(reference.norm().item<double>(), 0.1 * dy.norm().item<double>()));
    }
    const at::Tensor again = at::empty_like(own);
    attention_backward(dy.to(type), own, attention_forward(own, s.heads, s.kv_heads), s.heads, s.kv_heads, again);
    EXPECT_TRUE(again.equal(gradient));
  }
}

TEST_P(Attention, CachedEqualsWhole) {
  const Shape s = GetParam();
  const at::Tensor qkv = random_tensor({s.batch, s.length, (s.heads + 2 * s.kv_heads) * s.head_dim}, 1);
  const at::Tensor whole = written_out(qkv, s);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const int64_t rows = std::min<int64_t>(s.length, 3);
    at::Tensor keys = at::zeros({s.batch, s.length + 5, s.kv_heads * s.head_dim}, type).fill_(1e30);
    at::Tensor values = keys.clone();
    keys.narrow(1, 0, s.length).copy_(qkv.narrow(2, s.heads * s.head_dim, s.kv_heads * s.head_dim));
    values.narrow(1, 0, s.length).copy_(qkv.narrow(2, (s.heads + s.kv_heads) * s.head_dim, s.kv_heads * s.head_dim));
    const at::Tensor y =
        attention_cached_forward(qkv.to(type).narrow(1, s.length - rows, rows).narrow(2, 0, s.heads * s.head_dim), keys,
                                 values, s.length, s.heads, s.kv_heads);
    EXPECT_LT(relative_error(y, whole.narrow(1, s.length - rows, rows)), tolerance(type));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention,
                         testing::Values(Shape{1, 1, 1, 1, 16}, Shape{2, 1, 4, 2, 64}, Shape{2, 7, 2, 1, 16},
                                         Shape{1, 7, 6, 2, 64}, Shape{1, 64, 2, 2, 32}, Shape{1, 65, 3, 1, 32},
                                         Shape{2, 255, 6, 2, 64}, Shape{1, 256, 6, 2, 64}, Shape{1, 256, 4, 4, 128},
                                         Shape{1, 300, 4, 1, 128}, Shape{1, 131, 2, 1, 80}, Shape{1, 513, 2, 1, 16},
                                         Shape{3, 33, 4, 1, 24}));

TEST(AttentionRange, LargeScoresStayFinite) {
  const at::Tensor qkv = random_tensor({1, 70, 3 * 64}, 1, at::kFloat) * 100;
  const AttentionOutput output = attention_forward(qkv, 1, 1);
  EXPECT_TRUE(output.y.isfinite().all().item<bool>());
  EXPECT_LT(relative_error(output.y, written_out(qkv.to(at::kDouble), {1, 70, 1, 1, 64})), 1e-3);
  const at::Tensor gradient = at::empty_like(qkv);
  attention_backward(random_tensor({1, 70, 64}, 2, at::kFloat), qkv, output, 1, 1, gradient);
  EXPECT_TRUE(gradient.isfinite().all().item<bool>());
}

// A run that diverges has to show: a NaN key or query reaches every row that sees it, and no earlier one.
TEST(AttentionRange, NanIsNotHidden) {
  for (const int64_t bad : {0, 1}) {
    const at::Tensor qkv = random_tensor({1, 130, 3 * 16}, 1, at::kFloat);
    qkv[0][70][bad * 16 + 3].fill_(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor y = attention_forward(qkv, 1, 1).y[0];
    EXPECT_TRUE(y.narrow(0, 0, 70).isfinite().all().item<bool>());
    EXPECT_TRUE(y[70].isnan().all().item<bool>());
    EXPECT_EQ(y[129].isnan().all().item<bool>(), bad == 1);
  }
}

}  // namespace
}  // namespace paceline
