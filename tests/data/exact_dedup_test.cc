#include "paceline/data/exact_dedup.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace paceline {
namespace {

TEST(ExactDedup, WhiteSpaceDoesNotMakeADocument) {
  EXPECT_EQ(content_hash("one two\n\nthree"), content_hash("  one\ttwo three \n"));
  EXPECT_NE(content_hash("one two"), content_hash("onetwo"));
  EXPECT_NE(content_hash("one two"), content_hash("One two"));
  EXPECT_EQ(content_hash(" \n"), content_hash(""));
}

// Base b is written b + 1 times: 55 documents, 10 contents.
TEST(ExactDedup, KeepsTheFirstOfEach) {
  ExactDedup dedup;
  int kept = 0;
  std::vector<int> first_of(10, -1);
  for (int i = 0; i < 55; ++i) {
    int base = 0;
    while ((base + 1) * (base + 2) / 2 <= i * 21 % 55) ++base;  // mixed order
    const bool first = dedup.is_first(content_hash("base " + std::to_string(base)));
    EXPECT_EQ(first, first_of[base] < 0);
    if (first) first_of[base] = i;
    kept += first;
  }
  EXPECT_EQ(kept, 10);
  EXPECT_EQ(dedup.distinct(), 10U);
}

}  // namespace
}  // namespace paceline
