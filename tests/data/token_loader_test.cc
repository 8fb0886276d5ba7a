#include "paceline/data/token_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Sample {
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> documents;
  std::vector<std::uint8_t> mask;
};

Sample read(const TokenLoader& loader, std::uint64_t number) {
  const auto length = static_cast<std::size_t>(loader.sequence_length());
  Sample sample{std::vector<std::int64_t>(length + 1), std::vector<std::int32_t>(length + 1),
                std::vector<std::uint8_t>(length)};
  loader.read(number, sample.tokens, sample.documents, sample.mask);
  return sample;
}

class TokenLoaderTest : public testing::Test {
 protected:
  /// Tokens 0, 1, 2, ... in documents of these lengths.
  std::string write_counting(const std::vector<int>& lengths) {
    ShardWriter writer(prefix(), 60000);
    std::int32_t next = 0;
    for (const int length : lengths) {
      std::vector<std::int32_t> document;
      for (int i = 0; i < length; ++i) document.push_back(next++);
      writer.add_document(document);
    }
    writer.finish();
    return prefix();
  }
  std::string prefix() const { return (folder_ / "s").string(); }

  TemporaryFolder folder_;
};

TEST_F(TokenLoaderTest, WindowsShareOneTokenAndTheRaggedEndIsDropped) {
  const TokenLoader loader(write_counting({3, 5, 4}), 4, 0, false);
  EXPECT_EQ(loader.samples_per_epoch(), 2);  // (12 - 1) / 4: tokens 9, 10 and 11 are targets of none
  EXPECT_THAT(read(loader, 0).tokens, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read(loader, 1).tokens, ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(read(loader, 2).tokens, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read(loader, 0).documents, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(read(loader, 1).documents, ElementsAre(1, 1, 1, 1, 2));
  EXPECT_THAT(read(loader, 0).mask, Each(1));
}

TEST_F(TokenLoaderTest, DocumentIdsPassOverEmptyDocuments) {
  const TokenLoader loader(write_counting({0, 2, 0, 0, 1, 3}), 5, 0, false);
  EXPECT_THAT(read(loader, 0).documents, ElementsAre(1, 1, 4, 5, 5, 5));
}

TEST_F(TokenLoaderTest, EachEpochVisitsEachWindowInItsOwnOrder) {
  const TokenLoader loader(write_counting({700, 301}), 10, 7, true);
  ASSERT_EQ(loader.samples_per_epoch(), 100);
  std::vector<std::vector<std::int64_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::uint64_t i = 0; i < 100; ++i) order.push_back(read(loader, epoch * 100 + i).tokens.front());
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), 100U);
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  EXPECT_FALSE(std::is_sorted(orders[0].begin(), orders[0].end()));
}

TEST_F(TokenLoaderTest, OrderIsAFunctionOfSeedAndNumber) {
  write_counting({700, 301});
  const TokenLoader first(prefix(), 10, 7, true);
  const TokenLoader second(prefix(), 10, 7, true);
  const TokenLoader other_seed(prefix(), 10, 8, true);
  int equal = 0;
  for (std::uint64_t i = 250; i-- > 0;) {  // any order of calls
    EXPECT_EQ(read(first, i).tokens, read(second, i).tokens);
    equal += first.first_token(i) == other_seed.first_token(i);
  }
  EXPECT_LT(equal, 20);
  // Kept from release to release: a run that resumes must go on with the same samples.
  EXPECT_THAT((std::vector{first.first_token(0), first.first_token(1), first.first_token(99), first.first_token(100)}),
              ElementsAre(510, 990, 580, 960));
}

TEST_F(TokenLoaderTest, TooFewTokensAreRefusedWithTheNumbers) {
  write_counting({10});
  EXPECT_EQ(TokenLoader(prefix(), 9, 0, true).samples_per_epoch(), 1);
  EXPECT_THAT(error_of([this] { TokenLoader(prefix(), 10, 0, true); }),
              AllOf(HasSubstr("s.bin: has 10 tokens"), HasSubstr("sequence length 10 needs 11")));
  EXPECT_THAT(error_of([this] { TokenLoader(prefix(), 0, 0, true); }), HasSubstr("sequence length of 0"));
}

// Documents of 3, 5 and 8 tokens, each followed by the end token 0, padded with 0 to the sequence length 8: the
// padding is masked, the true ends are not although they have the same id.
TEST_F(TokenLoaderTest, MaskGoesByPositionNotById) {
  ShardWriter writer(prefix(), 10);
  std::string mask;
  for (const int length : {3, 5, 8}) {
    std::vector<std::int32_t> document(static_cast<std::size_t>(length), 7);
    document.push_back(0);
    mask += std::string(document.size(), '\1');
    while (document.size() % 8 != 0) document.push_back(0);
    mask.resize(mask.size() + 7 - (mask.size() + 7) % 8, '\0');
    writer.add_document(document);
  }
  writer.finish();
  ASSERT_EQ(mask.size(), 32U);
  write_file(prefix() + ".mask", mask);
  const TokenLoader loader(prefix(), 31, 0, false);
  const Sample sample = read(loader, 0);
  int counted = 0;
  int counted_ends = 0;
  for (std::size_t i = 0; i < sample.mask.size(); ++i) {
    counted += sample.mask[i];
    counted_ends += sample.mask[i] == 1 && sample.tokens[i + 1] == 0;
  }
  EXPECT_EQ(counted, 4 + 6 + 9 - 1);  // all tokens and ends, but the very first token is no target
  EXPECT_EQ(counted_ends, 3);

  write_file(prefix() + ".mask", mask + "x");
  EXPECT_THAT(error_of([this] { TokenLoader(prefix(), 8, 0, false); }),
              AllOf(HasSubstr("s.mask: has 33 bytes"), HasSubstr("32 tokens")));
}

TEST_F(TokenLoaderTest, ThreadsReadTheSame) {
  const TokenLoader loader(write_counting({2000, 3000}), 16, 3, true);
  std::vector<std::vector<std::int64_t>> sums(4);
  {
    std::vector<std::jthread> threads;
    for (auto& sum : sums) {
      threads.emplace_back([&loader, &sum] {
        for (std::uint64_t i = 0; i < 400; ++i) sum.push_back(read(loader, i).tokens[3]);
      });
    }
  }
  for (const auto& sum : sums) EXPECT_EQ(sum, sums[0]);
}

}  // namespace
}  // namespace paceline
