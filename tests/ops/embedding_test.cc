#include "paceline/ops/embedding.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "oracle.h"
#include "paceline/base/error.h"

namespace paceline {
namespace {

class Embedding : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Embedding, EqualsAutogradWholeAndSplit) {
  constexpr int64_t vocabulary = 40;
  constexpr int64_t width = 150;
  const at::Tensor tokens = random_tokens({3, 50}, vocabulary, 1);
  const at::Tensor table = random_tensor({vocabulary, width}, 2);
  const at::Tensor dy = random_tensor({3, 50, width}, 3);
  const AutogradResult expected =
      autograd([&](const auto& i) { return at::embedding(i[0], tokens); }, {table}, dy);

  for (const int64_t parts : {1, 2, 4}) {
    at::Tensor sum = at::zeros({3, 50, width}, GetParam());
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t rows = vocabulary / parts;
      const at::Tensor shard = table.narrow(0, part * rows, rows).to(GetParam()).contiguous();
      sum += embedding_forward(tokens, shard, part * rows);
      at::Tensor gradient = at::zeros_like(shard) + 1;
      embedding_backward(dy.to(GetParam()), tokens, part * rows, gradient);
      EXPECT_LT(relative_error(gradient, expected.gradients[0].narrow(0, part * rows, rows) + 1),
                tolerance(GetParam()));
    }
    EXPECT_TRUE(sum.equal(expected.y.to(GetParam())));
  }
}

TEST_P(Embedding, PositionsEqualAutograd) {
  const at::Tensor x = random_tensor({3, 7, 20}, 1);
  const at::Tensor table = random_tensor({11, 20}, 2);
  const at::Tensor dy = random_tensor({3, 7, 20}, 3);
  const auto function = [](const std::vector<at::Tensor>& i) { return i[0] + i[1].narrow(0, 0, 7); };
  const AutogradResult expected = autograd(function, {x, table}, dy);
  EXPECT_LT(relative_error(position_embedding_forward(x.to(GetParam()), table.to(GetParam())), expected.y),
            tolerance(GetParam()));
  EXPECT_LT(relative_error(position_embedding_forward(x.to(GetParam()), table.to(GetParam()), 4),
                           x + table.narrow(0, 4, 7)),
            tolerance(GetParam()));
  const at::Tensor gradient = at::zeros({11, 20}, GetParam()) + 1;
  position_embedding_backward(dy.to(GetParam()), gradient);
  EXPECT_LT(relative_error(gradient, expected.gradients[1] + 1), tolerance(GetParam()));
}

TEST(EmbeddingErrors, AreNamed) {
  const at::Tensor table = at::zeros({4, 2}, at::kFloat);
  EXPECT_THROW(embedding_forward(at::zeros({1, 3}, at::kLong) - 1, table, 0), Error);
  EXPECT_THROW(position_embedding_forward(at::zeros({1, 5, 2}, at::kFloat), table), Error);
}

INSTANTIATE_TEST_SUITE_P(Types, Embedding, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
