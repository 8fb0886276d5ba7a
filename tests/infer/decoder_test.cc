#include "paceline/infer/decoder.h"

#include "tiny_model.h"

#include "paceline/train/stage_runner.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace paceline {
namespace {

/// The logits [tokens, vocabulary] of the forward pass over the whole sequence that training uses.
at::Tensor whole_forward(TinyModel& model, const std::vector<std::int64_t>& tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  StageRunner runner(model.program, model.state, nullptr, length, model.account);
  MicroBatchData data{.tokens = at::zeros({1, length}, at::kLong), .targets = at::zeros({1, length}, at::kLong),
                      .mask = at::ones({1, length}, at::kByte)};
  std::copy(tokens.begin(), tokens.end(), data.tokens.mutable_data_ptr<std::int64_t>());
  return runner.evaluate(data, {}, true, {}).logits[0].clone();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor difference = at::sub(a, b).to(at::kDouble).contiguous();
  double largest = 0;
  for (std::int64_t i = 0; i < difference.numel(); ++i) {
    largest = std::max(largest, std::abs(difference.const_data_ptr<double>()[i]));
  }
  return largest;
}

class DecoderTest : public testing::TestWithParam<std::tuple<ModelFamily, std::string>> {
 protected:
  ModelConfig config() const { return std::get<0>(GetParam()) == ModelFamily::llama ? tiny_llama() : tiny_gpt2(); }
  double tolerance() const { return std::get<1>(GetParam()) == "fp64" ? 1e-9 : 1e-4; }
  TinyModel model{config(), std::get<1>(GetParam())};
};

TEST_P(DecoderTest, CacheGivesTheLogitsOfTheWholeForwardAtEveryPosition) {
  const std::vector<std::int64_t> tokens = random_tokens(40, 131);
  const at::Tensor whole = whole_forward(model, tokens);
  ASSERT_GT(largest_difference(whole[0], whole[39]), 0.1);  // the model says different things at different places
  Decoder decoder(model.program, model.state, 40);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const at::Tensor logits = decoder.append_for_next({&tokens[i], 1});
    EXPECT_LE(largest_difference(logits, whole[static_cast<std::int64_t>(i)]), tolerance()) << "position " << i;
  }
  EXPECT_EQ(decoder.length(), 40);
}

TEST_P(DecoderTest, PiecesOfAnyLengthGiveTheSame) {
  const std::vector<std::int64_t> tokens = random_tokens(30, 131);
  const at::Tensor whole = whole_forward(model, tokens);
  Decoder decoder(model.program, model.state, 30);
  std::int64_t begin = 0;
  for (const std::int64_t count : {9, 1, 13, 7}) {
    const at::Tensor logits = decoder.append(std::span(tokens).subspan(begin, count));
    ASSERT_EQ(logits.size(0), count);
    EXPECT_LE(largest_difference(logits, whole.narrow(0, begin, count)), tolerance()) << "from position " << begin;
    begin += count;
  }
}

TEST_P(DecoderTest, TruncatedPositionsAreForgotten) {
  const std::vector<std::int64_t> tokens = random_tokens(20, 131);
  const at::Tensor whole = whole_forward(model, tokens);
  Decoder decoder(model.program, model.state, 20);
  decoder.append(std::span(tokens).first(8));
  const std::vector<std::int64_t> others(12, 5);
  decoder.append(others);
  decoder.truncate(8);
  const at::Tensor logits = decoder.append(std::span(tokens).subspan(8));
  EXPECT_LE(largest_difference(logits, whole.narrow(0, 8, 12)), tolerance());
}

TEST_P(DecoderTest, MoreTokensThanPositionsAreABrokenInvariant) {
  Decoder decoder(model.program, model.state, 4);
  const std::vector<std::int64_t> tokens(5, 1);
  EXPECT_THROW(decoder.append(tokens), std::exception);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderTest,
                         testing::Combine(testing::Values(ModelFamily::llama, ModelFamily::gpt2), testing::Values("fp64", "fp32")),
                         [](const auto& info) { return family_name(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace paceline
