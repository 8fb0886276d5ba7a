#include "paceline/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace paceline {
namespace {

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, 0x85a308d3243f6a88ULL, 0x0370734413198a2eULL),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, NormalHasTheRightMoments) {
  const std::uint64_t key = stream_key(7, "moments");
  double sum = 0, squares = 0;
  constexpr int count = 200000;
  for (int i = 0; i < count; ++i) {
    const double value = random_normal(key, i);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(squares / count, 1.0, 0.02);
}

TEST(Philox, PermutationVisitsEachElementOnce) {
  for (const std::uint64_t size : {1ULL, 2ULL, 3ULL, 10ULL, 64ULL, 1000ULL}) {
    std::vector<int> seen(size, 0);
    for (std::uint64_t i = 0; i < size; ++i) {
      const auto value = random_permutation(stream_key(3, "order"), size, i);
      ASSERT_LT(value, size);
      ++seen[value];
    }
    for (const int count : seen) EXPECT_EQ(count, 1) << size;
  }
}

TEST(Philox, StreamsDifferByNameAndSeed) {
  EXPECT_NE(random_bits(stream_key(1, "a"), 0), random_bits(stream_key(1, "b"), 0));
  EXPECT_NE(random_bits(stream_key(1, "a"), 0), random_bits(stream_key(2, "a"), 0));
}

}  // namespace
}  // namespace paceline
