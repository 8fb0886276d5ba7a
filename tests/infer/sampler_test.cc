#include "paceline/infer/sampler.h"

#include "tiny_model.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <set>

namespace paceline {
namespace {

at::Tensor logits_of(const std::vector<double>& values) {
  at::Tensor logits = at::empty({static_cast<std::int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), logits.mutable_data_ptr<double>());
  return logits;
}

std::vector<bool> all(std::size_t count) { return std::vector<bool>(count, true); }

std::vector<double> frequencies(const Sampler& sampler, const at::Tensor& logits, int draws) {
  std::vector<double> counts(static_cast<std::size_t>(logits.numel()));
  for (int i = 0; i < draws; ++i) counts[static_cast<std::size_t>(sampler.sample(logits, static_cast<std::uint64_t>(i)))] += 1.0 / draws;
  return counts;
}

const std::vector<double> four = {std::log(0.1), std::log(0.4), std::log(0.2), std::log(0.3)};
constexpr int draws = 20000;
constexpr double margin = 0.015;  // more than four standard deviations of a frequency over 20,000 draws

TEST(Sampler, TemperatureZeroTakesTheLargestAndOfEqualOnesTheFirst) {
  const Sampler sampler({.temperature = 0}, all(4));
  for (std::uint64_t i = 0; i < 20; ++i) EXPECT_EQ(sampler.sample(logits_of({1, 5, 5, 2}), i), 1);
}

TEST(Sampler, DrawsWithTheSoftmaxProbabilities) {
  const std::vector<double> found = frequencies(Sampler({}, all(4)), logits_of(four), draws);
  const double expected[] = {0.1, 0.4, 0.2, 0.3};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], margin);
}

TEST(Sampler, TemperatureHalfSquaresTheProbabilities) {
  const std::vector<double> found = frequencies(Sampler({.temperature = 0.5}, all(4)), logits_of(four), draws);
  const double expected[] = {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], margin);
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  const std::vector<double> found = frequencies(Sampler({.top_k = 2}, all(4)), logits_of(four), draws);
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[2], 0);
  EXPECT_NEAR(found[1], 4.0 / 7, margin);
}

TEST(Sampler, TopPKeepsTheFewestThatHoldTheShare) {
  // 0.4 + 0.3 hold 0.65; 0.4 alone does not.
  const std::vector<double> found = frequencies(Sampler({.top_p = 0.65}, all(4)), logits_of(four), draws);
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[2], 0);
  EXPECT_NEAR(found[3], 3.0 / 7, margin);
  const std::vector<double> one = frequencies(Sampler({.top_p = 1e-9}, all(4)), logits_of(four), 100);
  EXPECT_NEAR(one[1], 1, 1e-12);
}

TEST(Sampler, TokensThatAreNotAllowedAreNeverDrawn) {
  const Sampler greedy({.temperature = 0}, {true, false, true, false});
  EXPECT_EQ(greedy.sample(logits_of(four), 0), 2);
  const std::vector<double> found = frequencies(Sampler({}, {true, false, true}), logits_of(four), draws);
  EXPECT_EQ(found[1], 0);
  EXPECT_EQ(found[3], 0);  // beyond the tokenizer
  EXPECT_NEAR(found[0], 1.0 / 3, margin);
}

TEST(Sampler, SeedDecides) {
  const at::Tensor logits = logits_of(std::vector<double>(100, 0.0));
  const auto drawn = [&](std::uint64_t seed) {
    const Sampler sampler({.seed = seed}, all(100));
    std::vector<std::int64_t> tokens;
    for (std::uint64_t i = 0; i < 30; ++i) tokens.push_back(sampler.sample(logits, i));
    return tokens;
  };
  EXPECT_EQ(drawn(4), drawn(4));
  EXPECT_NE(drawn(4), drawn(5));
  const std::vector<std::int64_t> tokens = drawn(4);
  EXPECT_GT(std::set<std::int64_t>(tokens.begin(), tokens.end()).size(), 15U);
}

TEST(Sampler, RefusesWhatIsNoDistribution) {
  EXPECT_THAT(error_of([] { Sampler({.temperature = -1}, {true}); }), testing::HasSubstr("--temperature -1"));
  EXPECT_THAT(error_of([] { Sampler({.temperature = std::nan("")}, {true}); }), testing::HasSubstr("--temperature"));
  EXPECT_THAT(error_of([] { Sampler({.top_k = -2}, {true}); }), testing::HasSubstr("--top-k -2"));
  EXPECT_THAT(error_of([] { Sampler({.top_p = 0}, {true}); }), testing::HasSubstr("--top-p 0"));
  EXPECT_THAT(error_of([] { Sampler({.top_p = 1.5}, {true}); }), testing::HasSubstr("--top-p 1.5"));
  const Sampler sampler({}, all(2));
  EXPECT_THAT(error_of([&] { sampler.sample(logits_of({0, std::nan("")}), 0); }), testing::HasSubstr("not finite (token 1)"));
  EXPECT_THAT(error_of([&] { sampler.sample(logits_of({std::numeric_limits<double>::infinity(), 0}), 0); }),
              testing::HasSubstr("not finite (token 0)"));
}

}  // namespace
}  // namespace paceline
