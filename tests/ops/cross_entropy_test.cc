#include "paceline/ops/cross_entropy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include "oracle.h"
#include "paceline/base/error.h"

namespace paceline {
namespace {

/// Ranks as threads: each leaves its rows, and all of them read everybody's in rank order.
class Board {
 public:
  explicit Board(int ranks) : rows_(ranks), barrier_(ranks) {}
  void reduce(int rank, at::Tensor& rows, bool maximum) {
    rows_[rank] = rows.clone();
    barrier_.arrive_and_wait();
    at::Tensor result = rows_[0].clone();
    for (size_t i = 1; i < rows_.size(); ++i) result = maximum ? at::maximum(result, rows_[i]) : result + rows_[i];
    rows.copy_(result);
    barrier_.arrive_and_wait();
  }

 private:
  std::vector<at::Tensor> rows_;
  std::barrier<> barrier_;
};

class BoardReducer : public RowReducer {
 public:
  BoardReducer(Board& board, int rank) : board_(board), rank_(rank) {}
  void max(at::Tensor& rows) override { board_.reduce(rank_, rows, true); }
  void sum(at::Tensor& rows) override { board_.reduce(rank_, rows, false); }

 private:
  Board& board_;
  int rank_;
};

class CrossEntropy : public testing::TestWithParam<at::ScalarType> {};

TEST_P(CrossEntropy, EqualsAutogradWholeAndSplit) {
  constexpr int64_t rows = 37;
  constexpr int64_t vocabulary = 2090;
  constexpr int64_t padded = 2400;  // divides by 2, 3 and 4
  constexpr double scale = 0.37;
  const at::Tensor logits = random_tensor({rows, padded}, 1) * 4;
  const at::Tensor tokens = random_tokens({rows}, vocabulary, 2);
  tokens[3].fill_(vocabulary - 1);
  at::Tensor mask = at::ones({rows}, at::kByte);
  for (const int64_t r : {0, 5, 36}) mask[r].fill_(0);
  const auto function = [&](const std::vector<at::Tensor>& i) {
    const at::Tensor log_softmax = i[0].narrow(1, 0, vocabulary).log_softmax(-1);
    return -(log_softmax.gather(1, tokens.unsqueeze(1)).squeeze(1) * mask).sum();
  };
  const AutogradResult expected = autograd(function, {logits}, at::ones({}, at::kDouble) * scale);
  const double tol = tolerance(GetParam());

  for (const int parts : {1, 2, 3, 4}) {
    const int64_t columns = padded / parts;
    Board board(parts);
    std::vector<double> sums(parts), evaluations(parts);
    std::vector<at::Tensor> gradients(parts);
    const auto rank = [&](int part) {
      BoardReducer reducer(board, part);
      RowReducer* split = parts > 1 ? &reducer : nullptr;
      gradients[part] = logits.narrow(1, part * columns, columns).to(GetParam()).clone().contiguous();
      const at::Tensor before = gradients[part].clone();
      const CrossEntropyTargets targets{tokens, mask, part * columns, vocabulary};
      evaluations[part] = cross_entropy_forward(gradients[part], targets, split);
      EXPECT_TRUE(gradients[part].equal(before));
      sums[part] = cross_entropy_forward_backward(gradients[part], targets, scale, split);
    };
    std::vector<std::thread> threads;
    for (int part = 0; part < parts; ++part) threads.emplace_back(rank, part);
    for (std::thread& thread : threads) thread.join();
    for (int part = 0; part < parts; ++part) {
      EXPECT_NEAR(sums[part], expected.y.item<double>(), tol * expected.y.item<double>());
      EXPECT_EQ(sums[part], sums[0]);
      EXPECT_EQ(evaluations[part], sums[0]);
      EXPECT_LT((gradients[part].to(at::kDouble) - expected.gradients[0].narrow(1, part * columns, columns))
                    .norm()
                    .item<double>(),
                tol * expected.gradients[0].norm().item<double>());
    }
    EXPECT_EQ(gradients[parts - 1].narrow(1, columns - (padded - vocabulary), padded - vocabulary)
                  .abs().max().item<double>(), 0);
  }
}

TEST_P(CrossEntropy, MaskedGarbageCostsNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor logits = random_tensor({4, 10}, 1, GetParam());
  const at::Tensor clean = logits.clone();
  logits[1].fill_(nan);
  logits[2].fill_(std::numeric_limits<double>::infinity());
  at::Tensor tokens = random_tokens({4}, 10, 2);
  const at::Tensor clean_tokens = tokens.clone();
  tokens[1].fill_(-100);
  tokens[2].fill_(1 << 30);
  at::Tensor mask = at::ones({4}, at::kByte);
  mask[1].fill_(0);
  mask[2].fill_(0);
  const double expected = cross_entropy_forward(clean, {clean_tokens, mask, 0, 10}, nullptr);
  Board board(1);
  BoardReducer reducer(board, 0);
  for (RowReducer* split : {static_cast<RowReducer*>(nullptr), static_cast<RowReducer*>(&reducer)}) {
    const at::Tensor own = logits.clone();
    const double sum = cross_entropy_forward_backward(own, {tokens, mask, 0, 10}, 1, split);
    EXPECT_NEAR(sum, expected, 1e-5);
    EXPECT_GT(sum, 0);
    EXPECT_EQ(own.narrow(0, 1, 2).abs().max().item<double>(), 0);
    EXPECT_GT(own[0].abs().max().item<double>(), 0);
  }
}

TEST_P(CrossEntropy, CountedNanShows) {
  at::Tensor logits = random_tensor({2, 10}, 1, GetParam());
  logits[1][4].fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(cross_entropy_forward(logits, {random_tokens({2}, 10, 2), {}, 0, 10}, nullptr)));
}

TEST_P(CrossEntropy, UniformLogitsGiveTheLogarithm) {
  const at::Tensor logits = at::zeros({3, 128}, GetParam()) + 1000;
  const double sum = cross_entropy_forward(logits, {random_tokens({3}, 100, 2), {}, 0, 100}, nullptr);
  EXPECT_NEAR(sum, 3 * std::log(100.0), 1e-5);
}

TEST_P(CrossEntropy, TargetOutsideTheVocabularyIsNamed) {
  const at::Tensor logits = random_tensor({2, 16}, 1, GetParam());
  const at::Tensor before = logits.clone();
  at::Tensor tokens = at::zeros({2}, at::kLong);
  tokens[1].fill_(12);
  try {
    cross_entropy_forward_backward(logits, {tokens, {}, 0, 12}, 1, nullptr);
    FAIL() << "accepted a target in the padding";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("target 12 at position 1"));
    EXPECT_THAT(error.what(), testing::HasSubstr("12 tokens"));
  }
  EXPECT_TRUE(logits.equal(before));
}

INSTANTIATE_TEST_SUITE_P(Types, CrossEntropy, testing::Values(at::kFloat, at::kDouble));

}  // namespace
}  // namespace paceline
