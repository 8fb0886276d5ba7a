#include "paceline/infer/generate.h"

#include "tiny_model.h"

#include "paceline/base/error.h"
#include "paceline/data/tokenizer_json.h"
#include "paceline/infer/decoder.h"
#include "paceline/infer/text_generation.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace paceline {
namespace {

using testing::HasSubstr;

std::int64_t largest_index(const at::Tensor& logits) {
  const at::Tensor values = logits.to(at::kDouble).contiguous();
  const double* value = values.const_data_ptr<double>();
  return std::max_element(value, value + values.numel()) - value;
}

TEST(GenerateTokens, GreedyIsTheArgmaxOfTheWholeForwardWhileTheWindowHoldsTheText) {
  const TemporaryFolder folder;
  for (const ModelConfig& config : {tiny_llama(), tiny_gpt2()}) {
    const std::filesystem::path run = folder / family_name(config.family);
    write_run(run, config);
    LoadedModel model(run, {.precision = "fp64"});
    std::vector<std::int64_t> context = random_tokens(6, 131);
    const Generation generation = generate_tokens(
        model, context, {.sampling = {.temperature = 0}, .max_new_tokens = 34, .allowed = std::vector<bool>(131, true)}, {});
    ASSERT_EQ(generation.tokens.size(), 34U);
    EXPECT_EQ(generation.window_slides, 0);
    for (const std::int64_t token : generation.tokens) {
      Decoder decoder(model.program(), model.state(), 40);
      EXPECT_EQ(token, largest_index(decoder.append_for_next(context)));
      context.push_back(token);
    }
  }
}

TEST(GenerateTokens, AFullWindowGoesOnFromItsLaterHalf) {
  const TemporaryFolder folder;
  write_run(folder / "run", tiny_gpt2());
  LoadedModel model(folder / "run", {.precision = "fp64"});
  std::vector<std::int64_t> context = random_tokens(39, 131);
  const Generation generation = generate_tokens(
      model, context, {.sampling = {.temperature = 0}, .max_new_tokens = 60, .allowed = std::vector<bool>(131, true)}, {});
  ASSERT_EQ(generation.tokens.size(), 60U);
  EXPECT_EQ(generation.window_slides, 3);  // at 41, 61 and 81 tokens
  context.insert(context.end(), generation.tokens.begin(), generation.tokens.begin() + 2);
  Decoder decoder(model.program(), model.state(), 40);
  EXPECT_EQ(generation.tokens[2], largest_index(decoder.append_for_next(std::span(context).last(20))));

  const std::vector<std::int64_t> many = random_tokens(100, 131);
  const Generation long_prompt = generate_tokens(
      model, many, {.sampling = {.temperature = 0}, .max_new_tokens = 1, .allowed = std::vector<bool>(131, true)}, {});
  EXPECT_EQ(long_prompt.window_slides, 1);
  decoder.truncate(0);
  EXPECT_EQ(long_prompt.tokens[0], largest_index(decoder.append_for_next(std::span(many).last(40))));
}

TEST(GenerateTokens, AnEndTokenStopsAndIsNotPartOfTheText) {
  const TemporaryFolder folder;
  write_run(folder / "run", tiny_llama());
  LoadedModel model(folder / "run");
  GenerationOptions options{.sampling = {.temperature = 0}, .max_new_tokens = 10, .allowed = std::vector<bool>(131, true)};
  const std::vector<std::int64_t> free = generate_tokens(model, {1, 2, 3}, options, {}).tokens;
  const auto first_seen = std::find(free.begin(), free.end(), free[4]) - free.begin();
  options.end_ids = {free[4]};
  std::vector<std::int64_t> told;
  const Generation stopped = generate_tokens(model, {1, 2, 3}, options, [&](std::int64_t token) { told.push_back(token); });
  EXPECT_EQ(stopped.stop, StopReason::end_of_text);
  EXPECT_EQ(stopped.tokens, std::vector<std::int64_t>(free.begin(), free.begin() + first_seen));
  EXPECT_EQ(told, stopped.tokens);
}

/// A run with a tokenizer beside it: the 256 bytes, one pair and the end of text.
class Generate : public testing::Test {
 protected:
  Generate() {
    ModelConfig model = tiny_llama();
    model.vocab_size = 270;  // more rows than tokens
    write_run(folder / "run", model);
    write_tokenizer(folder / "run/tokenizer.json");
    request = {.model = (folder / "run").string(), .prompt = "caf\u00e9", .max_new_tokens = 50, .json = true};
  }

  static void write_tokenizer(const std::filesystem::path& path) {
    BpeVocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.push_back(std::string(1, static_cast<char>(byte)));
    vocabulary.tokens.push_back("ca");
    vocabulary.tokens.push_back(std::string(end_of_text_token));
    vocabulary.merges.push_back({'c', 'a', 256});
    vocabulary.added.push_back({std::string(end_of_text_token), 257, true});
    write_tokenizer_json(ByteBpe(std::move(vocabulary)), path);
  }

  std::string run() const {
    testing::internal::CaptureStdout();
    const int code = run_generate(request);
    const std::string output = testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0);
    return output;
  }

  TemporaryFolder folder;
  GenerateRequest request;
};

TEST_F(Generate, JsonHoldsThePromptTheTextAndItsTokens) {
  const nlohmann::json result = nlohmann::json::parse(run());
  EXPECT_EQ(result["prompt"], "caf\u00e9");
  EXPECT_EQ(result["prompt_tokens"], nlohmann::json({256, 'f', 0xC3, 0xA9}));
  EXPECT_EQ(result["step"], 7);
  EXPECT_EQ(result["context_window"], 40);
  ASSERT_FALSE(result["tokens"].empty());
  for (const std::int64_t token : result["tokens"]) EXPECT_LT(token, 257);
  EXPECT_TRUE(result["tokens_per_s"].is_null() || result["tokens_per_s"].get<double>() > 0);
  const bool ended = result["stop"] == "end_of_text";
  EXPECT_EQ(result["tokens"].size() == 50, !ended);
}

TEST_F(Generate, TheSameSeedGivesTheSameTextAndPlainOutputShowsPromptAndText) {
  const nlohmann::json result = nlohmann::json::parse(run());
  EXPECT_EQ(nlohmann::json::parse(run())["text"], result["text"]);
  request.json = false;
  EXPECT_EQ(run(), "caf\u00e9" + result["text"].get<std::string>() + "\n");
  request.seed = 2;
  request.json = true;
  EXPECT_NE(nlohmann::json::parse(run())["text"], result["text"]);
}

TEST_F(Generate, WithoutAPromptItBeginsBehindTheEndOfText) {
  request.prompt = "";
  EXPECT_EQ(nlohmann::json::parse(run())["prompt_tokens"], nlohmann::json({257}));
}

TEST_F(Generate, ATokenizerWithMoreEntriesThanTheTableIsRefused) {
  write_run(folder / "small", tiny_llama());
  write_tokenizer(folder / "small/tokenizer.json");
  request.model = (folder / "small").string();
  EXPECT_THAT(error_of([&] { run_generate(request); }), HasSubstr("has 258 entries, but the model's vocabulary is 131"));
}

TEST_F(Generate, AModelWithoutATokenizerIsRefused) {
  std::filesystem::remove(folder / "run/tokenizer.json");
  EXPECT_THAT(error_of([&] { run_generate(request); }), HasSubstr("no tokenizer.json"));
}

}  // namespace
}  // namespace paceline
