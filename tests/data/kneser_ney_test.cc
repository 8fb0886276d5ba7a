#include "paceline/data/kneser_ney.h"

#include <gtest/gtest.h>

#include <cmath>

#include "paceline/base/philox.h"

namespace paceline {
namespace {

/// A stream with a skewed, context-dependent distribution.
std::vector<std::int32_t> skewed_stream(std::size_t length, std::int32_t vocabulary) {
  std::vector<std::int32_t> stream = {0};
  const std::uint64_t key = stream_key(5, "stream");
  for (std::uint64_t i = 1; i < length; ++i) {
    const double u = random_uniform(key, i);
    stream.push_back((stream.back() * 3 + static_cast<std::int32_t>(u * u * u * vocabulary)) % vocabulary);
  }
  return stream;
}

// Stream a b a b a c (a = 0, b = 1, c = 2; d = 3 never occurs). Pairs: ab 2, ba 2, ac 1.
// n1 = 1, n2 = 2, n3 = n4 = 0: one discount Y = 1 / (1 + 2 * 2) = 1/5.
// Predecessors: N(.a) = 1, N(.b) = 1, N(.c) = 1, N(.d) = 0, in all 3; n1 = 3, n2 = 0: Y = 3 / 3 = 1.
// P(w) = (1 - 1) / 3 + (3 * 1) / 3 / 4 = 1/4 for every w.
// c(a.) = 3: P(b|a) = (2 - 1/5) / 3 + (2 * 1/5) / 3 * 1/4 = 0.6 + 1/30.
TEST(KneserNeyBigram, ByHand) {
  const std::vector<std::int32_t> stream = {0, 1, 0, 1, 0, 2};
  const KneserNeyBigram model(stream, 4);
  EXPECT_DOUBLE_EQ(model.pair_discounts()[0], 0.2);
  EXPECT_DOUBLE_EQ(model.lower_discounts()[0], 1.0);
  EXPECT_DOUBLE_EQ(model.probability(0, 1), 0.6 + 1.0 / 30);
  EXPECT_DOUBLE_EQ(model.probability(0, 2), 0.8 / 3 + 1.0 / 30);
  EXPECT_DOUBLE_EQ(model.probability(0, 0), 1.0 / 30);
  EXPECT_DOUBLE_EQ(model.probability(1, 0), 0.9 + 0.1 / 4);
  EXPECT_DOUBLE_EQ(model.probability(3, 2), 0.25);  // an unseen context
  const std::vector<std::int32_t> held_out = {0, 1, 3};
  EXPECT_DOUBLE_EQ(model.loss(held_out), -(std::log(0.6 + 1.0 / 30) + std::log(0.1 / 4)) / 2);
}

TEST(KneserNeyBigram, ProbabilitiesSumToOne) {
  constexpr std::int32_t vocabulary = 200;
  const KneserNeyBigram model(skewed_stream(20000, vocabulary), vocabulary + 50);
  // With all counts of counts there, three discounts, each below its count.
  EXPECT_LT(model.pair_discounts()[0], model.pair_discounts()[1]);
  EXPECT_LT(model.pair_discounts()[1], model.pair_discounts()[2]);
  for (const std::int32_t context : {0, 1, 17, 100, 199, 230}) {
    double sum = 0;
    double smallest = 1;
    for (std::int32_t token = 0; token < vocabulary + 50; ++token) {
      sum += model.probability(context, token);
      smallest = std::min(smallest, model.probability(context, token));
    }
    EXPECT_NEAR(sum, 1.0, 1e-12) << context;
    EXPECT_GT(smallest, 0.0);
  }
}

TEST(KneserNeyBigram, LearnsMoreThanTheUnigram) {
  constexpr std::int32_t vocabulary = 200;
  const auto stream = skewed_stream(60000, vocabulary);
  const std::span all(stream);
  const KneserNeyBigram model(all.first(50000), vocabulary);
  std::vector<double> counts(vocabulary, 1.0);
  for (const std::int32_t token : all.first(50000)) counts[static_cast<std::size_t>(token)] += 1;
  double unigram = 0;
  for (const std::int32_t token : all.subspan(50001))
    unigram -= std::log(counts[static_cast<std::size_t>(token)] / (50000 + vocabulary));
  EXPECT_LT(model.loss(all.subspan(50000)), 0.9 * unigram / 9999);
}

}  // namespace
}  // namespace paceline
