#include "paceline/data/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace paceline {
namespace {

TEST(ParallelFor, EachIndexOnce) {
  for (const int workers : {1, 3, 50}) {
    std::vector<std::atomic<int>> seen(20);
    std::atomic<int> highest_worker{0};
    parallel_for(seen.size(), workers, [&](int worker, std::size_t index) {
      ++seen[index];
      int highest = highest_worker;
      while (worker > highest && !highest_worker.compare_exchange_weak(highest, worker)) {
      }
    });
    for (const auto& count : seen) EXPECT_EQ(count, 1);
    EXPECT_LT(highest_worker, workers);
  }
  parallel_for(0, 4, [](int, std::size_t) { FAIL(); });
}

TEST(ParallelFor, TheFirstFailureEndsIt) {
  std::atomic<int> calls{0};
  try {
    parallel_for(100000, 4, [&](int, std::size_t index) {
      ++calls;
      if (index >= 5) throw std::runtime_error(std::to_string(index));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "5");
  }
  EXPECT_LT(calls, 1000);
}

}  // namespace
}  // namespace paceline
