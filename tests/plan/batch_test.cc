#include "paceline/plan/batch.h"

#include "paceline/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paceline {
namespace {

using ::testing::HasSubstr;
constexpr std::nullopt_t left_out = std::nullopt;

std::string refusal(std::optional<std::int64_t> global, std::int64_t micro, std::optional<std::int64_t> accumulation,
                    std::int64_t dp) {
  try {
    resolve_batch(global, micro, accumulation, dp);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "accepted";
}

TEST(ResolveBatch, FillsInWhatIsLeftOut) {
  EXPECT_EQ(resolve_batch(left_out, 4, left_out, 2), (BatchPlan{8, 4, 1, 2}));
  EXPECT_EQ(resolve_batch(left_out, 4, 3, 2), (BatchPlan{24, 4, 3, 2}));
  EXPECT_EQ(resolve_batch(24, 4, left_out, 2), (BatchPlan{24, 4, 3, 2}));
  EXPECT_EQ(resolve_batch(24, 4, 3, 2), (BatchPlan{24, 4, 3, 2}));
}

TEST(ResolveBatch, RefusesProductsThatDoNotClose) {  // T12
  const std::string a = refusal(64, 4, 8, 1);
  EXPECT_THAT(a, HasSubstr("4 x 8 x 1 = 32, not 64"));
  EXPECT_THAT(a, HasSubstr("accumulation 16 or dp 2"));
  const std::string b = refusal(8, 4, left_out, 4);
  EXPECT_THAT(b, HasSubstr("4 x 4"));
  EXPECT_THAT(b, HasSubstr("needs at least 16, or micro-batch 2"));
  const std::string c = refusal(2, 4, left_out, 1);
  EXPECT_THAT(c, HasSubstr("needs at least 4, or micro-batch 2"));
  EXPECT_THAT(refusal(0, 4, left_out, 1), HasSubstr("train.global_batch_size is 0"));
  const std::string e = refusal(6, 4, left_out, 1);
  EXPECT_THAT(e, HasSubstr("4 or 8 would work, or micro-batch 3"));
}

TEST(ResolveBatch, WhatItOffersWorks) {
  EXPECT_EQ(refusal(64, 4, 16, 1), "accepted");
  EXPECT_EQ(refusal(64, 4, 8, 2), "accepted");
  EXPECT_EQ(refusal(8, 2, left_out, 4), "accepted");
  EXPECT_EQ(refusal(6, 3, left_out, 1), "accepted");
  EXPECT_THAT(refusal(9, 2, left_out, 4), HasSubstr("dp 3 or train.global_batch_size 16 would work"));
  EXPECT_EQ(refusal(16, 2, left_out, 4), "accepted");
}

TEST(ResolveBatch, RefusesSizesBelowOne) {
  EXPECT_THAT(refusal(left_out, 0, left_out, 1), HasSubstr("train.micro_batch_size is 0"));
  EXPECT_THAT(refusal(left_out, 1, 0, 1), HasSubstr("train.gradient_accumulation_steps is 0"));
  EXPECT_THAT(refusal(-4, 1, left_out, 1), HasSubstr("train.global_batch_size is -4"));
}

}  // namespace
}  // namespace paceline
