#include "paceline/config/run_settings.h"

#include "paceline/base/error.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

std::string refusal(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_run_settings(toml, "run.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST(RunSettings, TextIsReadBackToTheSameSettings) {
  const RunSettings settings = parse_run_settings("[optimizer]\nlearning_rate = 0.1234567890123456789\n[parallel]\nlayers_per_stage = [2, 3]\n",
                                                  "run.toml", {"run.folder=a \"quoted\" name", "train.frozen=['a.*', 'b']"});
  const std::string text = to_toml(settings);
  EXPECT_EQ(to_toml(parse_run_settings(text, "again", {})), text);
  EXPECT_EQ(settings.optimizer.learning_rate, 0.1234567890123456789);
  EXPECT_EQ(settings.parallel.layers_per_stage, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(settings.train.frozen, (std::vector<std::string>{"a.*", "b"}));
}

TEST(RunSettings, UnknownKeysNameFileLineAndTheNearestKey) {
  EXPECT_EQ(refusal("[train]\nsteps = 3\nsequence_lenght = 8\n"),
            "run.toml:3: unknown key 'train.sequence_lenght'; the nearest known key is 'train.sequence_length' (`paceline config` prints all)");
  EXPECT_NE(refusal("[optimiser]\nlearning_rate = 1.0\n").find("'optimizer.learning_rate'"), std::string::npos);
  EXPECT_NE(refusal("steps = 3\n").find("'train.steps'"), std::string::npos);
  EXPECT_NE(refusal("", {"paralel.tp=2"}).find("'parallel.tp'"), std::string::npos);
}

TEST(RunSettings, WrongTypesAndSyntaxAreNamed) {
  EXPECT_EQ(refusal("[train]\n\nsteps = 'many'\n"), "run.toml:3: train.steps must be an integer");
  EXPECT_NE(refusal("[train\n").find("run.toml:1"), std::string::npos);
  EXPECT_NE(refusal("", {"train.steps"}).find("key=value"), std::string::npos);
  EXPECT_NE(refusal("", {"train.steps=1.5"}).find("integer"), std::string::npos);
  EXPECT_NE(refusal("train = 3\n").find("train"), std::string::npos);
  std::string dotted = "a";
  for (int i = 0; i < 100'000; ++i) dotted += ".a";
  EXPECT_EQ(refusal("\n" + dotted + " = 1\n"), "run.toml:2: more than 1000 dots in a line");
  EXPECT_NE(refusal("", {"run.folder=1\n" + dotted + "=1"}).find("more than 1000 dots"), std::string::npos);
}

TEST(RunSettings, RefusesValuesThatNoRunCanHave) {
  for (const char* assignment : {"optimizer.max_gradient_norm=-1.0", "optimizer.max_gradient_norm=nan", "train.steps=0",
                                 "train.micro_batch_size=0", "parallel.tp=0", "train.precision=fp8", "optimizer.beta1=1.0",
                                 "learning_rate.minimum_ratio=2.0", "train.global_batch_size=-4", "optimizer.learning_rate=inf",
                                 "model.hidden_size=9223372036854775807", "train.micro_batch_size=4294967296",
                                 "parallel.dp=4294967297", "parallel.bucket_mb=inf"}) {
    const std::string message = refusal("", {assignment});
    const std::string key(assignment, std::string_view(assignment).find('='));
    EXPECT_NE(message.find(key), std::string::npos) << assignment << ": " << message;
  }
}

TEST(RunSettings, EveryKeyHasAMeaning) {
  for (const Setting& row : settings_table()) {
    EXPECT_FALSE(row.meaning.empty()) << row.key;
    EXPECT_NE(row.key.find('.'), std::string::npos) << row.key;
  }
}

TEST(ResolveModel, FillsInTheFamilysDefaults) {
  const RunSettings llama = parse_run_settings("[model]\nhidden_size = 100\nnum_attention_heads = 5\n", "run.toml", {});
  const ModelConfig model = resolve_model(llama, 777);
  EXPECT_EQ(model.vocab_size, 777);
  EXPECT_EQ(model.head_dim, 20);
  EXPECT_EQ(model.num_key_value_heads, 5);
  EXPECT_EQ(model.intermediate_size, 288);
  const RunSettings gpt2 = parse_run_settings("[model]\nfamily = 'gpt2'\n", "run.toml", {});
  EXPECT_EQ(resolve_model(gpt2, 100).intermediate_size, 4 * 128);
  EXPECT_TRUE(resolve_model(gpt2, 100).tie_word_embeddings);
  EXPECT_EQ(resolve_model(gpt2, 100).activation, "gelu_new");
  EXPECT_THROW(resolve_model(parse_run_settings("[model]\nhidden_size = 101\n", "run.toml", {}), 10), Error);
  EXPECT_THROW(resolve_model(parse_run_settings("[model]\nhead_dim = 4611686018427387904\n", "run.toml", {}), 10), Error);
}

}  // namespace
}  // namespace paceline
