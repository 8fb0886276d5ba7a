#include "paceline/parallel/layout.h"

#include "paceline/base/error.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

TEST(Layout, RanksAndCoordinatesAreInverse) {
  const Layout layout{.dp = 3, .tp = 2, .pp = 4};
  EXPECT_EQ(layout.world_size(), 24);
  for (int rank = 0; rank < 24; ++rank) EXPECT_EQ(layout.rank(layout.coordinate(rank)), rank);
}

TEST(Layout, TensorParallelIsFastestThenDataThenPipeline) {
  const Layout layout{.dp = 2, .tp = 2, .pp = 2};
  EXPECT_EQ(layout.tensor_group(5), (std::vector<int>{4, 5}));
  EXPECT_EQ(layout.data_group(5), (std::vector<int>{5, 7}));
  EXPECT_EQ(layout.pipeline_group(5), (std::vector<int>{1, 5}));
  EXPECT_EQ(layout.model_group(5), (std::vector<int>{0, 1, 4, 5}));
}

TEST(Layout, TextIsReadBack) {
  EXPECT_EQ(parse_layout("tp=2,dp=4"), (Layout{.dp = 4, .tp = 2, .pp = 1}));
  EXPECT_EQ(parse_layout(Layout{.dp = 2, .tp = 3, .pp = 5}.text()), (Layout{.dp = 2, .tp = 3, .pp = 5}));
  for (const char* wrong : {"xp=2", "tp", "tp=0", "tp=-1", "tp=2x", "tp=", "2", "dp=2147483647,tp=2", "dp=65536,pp=65536"}) {
    EXPECT_THROW(parse_layout(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace paceline
