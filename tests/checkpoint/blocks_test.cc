#include "paceline/checkpoint/blocks.h"

#include "paceline/base/philox.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace paceline {
namespace {

at::Tensor numbered(std::int64_t rows, std::int64_t columns) {
  return at::arange(rows * columns, at::kDouble).reshape({rows, columns});
}

TEST(Blocks, CopyBetweenGlobalAndLocal) {
  // The second half of four rows goes to local rows 3 and 4, columns 1 to 3 of a wider storage.
  const Block block{.tensor = "w", .global_shape = {4, 3}, .begin = {2, 0}, .extent = {2, 3}, .row = 3, .column = 1};
  const at::Tensor local = at::zeros({6, 5}, at::kDouble);
  scatter(block, numbered(4, 3), local);
  EXPECT_EQ(local[3][1].item<double>(), 6.0);
  EXPECT_EQ(local[4][3].item<double>(), 11.0);
  EXPECT_EQ(local.sum().item<double>(), 6 + 7 + 8 + 9 + 10 + 11.0);
  EXPECT_TRUE(at::equal(gather(block, local), numbered(4, 3).narrow(0, 2, 2)));
}

TEST(Blocks, TransposedBlocksKeepTheGlobalOrientation) {
  // GPT-2's [in, out]: output columns 2 and 3 of a [3, 6] matrix become local rows 1 and 2.
  const Block block{
      .tensor = "w", .global_shape = {3, 6}, .begin = {0, 2}, .extent = {3, 2}, .row = 1, .transposed = true};
  const at::Tensor local = at::zeros({3, 3}, at::kDouble);
  scatter(block, numbered(3, 6), local);
  EXPECT_EQ(local[1][0].item<double>(), 2.0);
  EXPECT_EQ(local[2][0].item<double>(), 3.0);
  EXPECT_EQ(local[1][2].item<double>(), 14.0);
  const at::Tensor back = gather(block, local);
  EXPECT_TRUE(back.is_contiguous());
  EXPECT_TRUE(at::equal(back, numbered(3, 6).narrow(1, 2, 2)));
}

TEST(Blocks, OneDimension) {
  const Block block{.tensor = "b", .global_shape = {6}, .begin = {2}, .extent = {3}, .row = 1};
  const at::Tensor local = at::zeros({4}, at::kDouble);
  scatter(block, at::arange(6, at::kDouble), local);
  EXPECT_TRUE(at::equal(gather(block, local), at::arange(2, 5, at::kDouble)));
  EXPECT_EQ(local[0].item<double>(), 0.0);
}

TEST(Blocks, OwnersAreTheFirstReplica) {
  Block block{.tensor = "b", .global_shape = {1}, .begin = {0}, .extent = {1}};
  EXPECT_TRUE(owns_block(block, 3));
  block.replicas = {1, 3};
  EXPECT_TRUE(owns_block(block, 1));
  EXPECT_FALSE(owns_block(block, 3));
  EXPECT_FALSE(owns_block(block, 0));
}

TEST(Initialize, EveryLayoutGetsTheSameElements) {
  const Parameter whole{.name = "p",
                        .shape = {6, 4},
                        .blocks = {{.tensor = "w", .global_shape = {6, 4}, .begin = {0, 0}, .extent = {6, 4}}},
                        .standard_deviation = 0.5};
  const at::Tensor all = at::empty({6, 4}, at::kDouble);
  initialize(whole, 7, all);
  EXPECT_EQ(all[5][3].item<double>(), 0.5 * random_normal(stream_key(7, "w"), 23));

  // The last two rows, padded to five, and the middle columns transposed.
  const Parameter rows{.name = "p",
                       .shape = {5, 4},
                       .blocks = {{.tensor = "w", .global_shape = {6, 4}, .begin = {4, 0}, .extent = {2, 4}}},
                       .standard_deviation = 0.5};
  const at::Tensor part = at::full({5, 4}, 9.0, at::kDouble);
  initialize(rows, 7, part);
  EXPECT_TRUE(at::equal(part.narrow(0, 0, 2), all.narrow(0, 4, 2)));
  EXPECT_TRUE(at::equal(part.narrow(0, 2, 3), at::zeros({3, 4}, at::kDouble)));
  EXPECT_TRUE(has_padding(rows));
  EXPECT_FALSE(has_padding(whole));
  const Parameter columns{
      .name = "p",
      .shape = {2, 6},
      .blocks = {{.tensor = "w", .global_shape = {6, 4}, .begin = {0, 1}, .extent = {6, 2}, .transposed = true}},
      .standard_deviation = 0.5};
  const at::Tensor transposed = at::empty({2, 6}, at::kDouble);
  initialize(columns, 7, transposed);
  EXPECT_TRUE(at::equal(transposed, all.narrow(1, 1, 2).t()));

  const at::Tensor single = at::empty({6, 4}, at::kFloat);
  initialize(whole, 7, single);
  EXPECT_TRUE(at::equal(single, all.to(at::kFloat)));
  const at::Tensor other_seed = at::empty({6, 4}, at::kDouble);
  initialize(whole, 8, other_seed);
  EXPECT_FALSE(at::equal(other_seed, all));
}

TEST(Initialize, OnesZerosAndMoments) {
  Parameter parameter{.name = "p",
                      .shape = {300, 1000},
                      .blocks = {{.tensor = "w", .global_shape = {300, 1000}, .begin = {0, 0}, .extent = {300, 1000}}},
                      .standard_deviation = 0.02};
  const at::Tensor values = at::empty({300, 1000}, at::kFloat);
  initialize(parameter, 1, values);
  EXPECT_NEAR(values.mean().item<double>(), 0.0, 5 * 0.02 / std::sqrt(300'000.0));
  EXPECT_NEAR(values.std().item<double>(), 0.02, 5 * 0.02 / std::sqrt(600'000.0));
  parameter.initialization = Initialization::zeros;
  initialize(parameter, 1, values);
  EXPECT_EQ(values.abs().max().item<double>(), 0.0);
  parameter.initialization = Initialization::ones;
  initialize(parameter, 1, values);
  EXPECT_EQ(values.min().item<double>(), 1.0);
}

}  // namespace
}  // namespace paceline
