#include "paceline/ops/attention_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "paceline/base/philox.h"

namespace paceline {
namespace {

struct Tensors {
  int64_t length, group, head_dim, width;
  std::vector<float> qkv, dy, y, logsumexp, dqkv;

  Tensors(int64_t length_, int64_t group_, int64_t head_dim_)
      : length(length_), group(group_), head_dim(head_dim_), width((group_ + 2) * head_dim_),
        qkv(length * width), dy(length * group * head_dim), y(dy.size()), logsumexp(group * length),
        dqkv(qkv.size(), NAN) {
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(random_normal(1, i));
    for (size_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<float>(random_normal(2, i));
  }

  void run(const AttentionKernel& kernel) {
    const int64_t k = group * head_dim;
    const int64_t v = k + head_dim;
    const AttentionUnit unit{length, group, head_dim, width, k, qkv.data(), qkv.data() + k, qkv.data() + v, y.data(),
                             logsumexp.data()};
    constexpr int64_t guard = 64;
    std::vector<float> workspace(kernel.forward_workspace(length, head_dim) + guard, 7);
    kernel.forward(unit, workspace.data());
    for (int64_t i = 1; i <= guard; ++i) ASSERT_EQ(workspace[workspace.size() - i], 7);
    workspace.assign(kernel.backward_workspace(length, head_dim) + guard, 7);
    kernel.backward(unit, {dy.data(), dqkv.data(), dqkv.data() + k, dqkv.data() + v}, workspace.data());
    for (int64_t i = 1; i <= guard; ++i) ASSERT_EQ(workspace[workspace.size() - i], 7);
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// The best one is held against autograd in attention_test.cc; the others against it.
TEST(AttentionKernels, OfAllInstructionSetsAgreeAndStayInTheirWorkspace) {
  for (const auto [length, group, head_dim] :
       {std::array<int64_t, 3>{1, 1, 16}, {7, 2, 64}, {64, 1, 20}, {131, 3, 80}, {200, 2, 128}}) {
    Tensors best(length, group, head_dim);
    best.run(attention_kernel(best_instruction_set()));
    for (int set = 0; set < static_cast<int>(best_instruction_set()); ++set) {
      Tensors other(length, group, head_dim);
      other.run(attention_kernel(static_cast<InstructionSet>(set)));
      EXPECT_LT(distance(other.y, best.y), 1e-6) << set;
      EXPECT_LT(distance(other.logsumexp, best.logsumexp), 1e-6) << set;
      EXPECT_LT(distance(other.dqkv, best.dqkv), 2e-6) << set;
    }
  }
}

}  // namespace
}  // namespace paceline
