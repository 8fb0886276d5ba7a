#include "paceline/checkpoint/convert.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/checkpoint.h"
#include "paceline/checkpoint/huggingface_model.h"
#include "temporary_folder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ModelConfig gpt2() {
  return {.family = ModelFamily::gpt2,
          .vocab_size = 37,
          .hidden_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 4,
          .head_dim = 4,
          .intermediate_size = 64,
          .max_position_embeddings = 32,
          .tie_word_embeddings = true,
          .activation = "gelu_new"};
}

/// A run with one checkpoint of random weights and, where asked, masters of more precision.
void make_run(const std::filesystem::path& run, at::ScalarType weights, bool masters) {
  const Program program = build_program(gpt2());
  std::vector<StoredParameter> stored;
  for (const Parameter& parameter : program.parameters) {
    const at::Tensor master = at::empty(parameter.shape, at::TensorOptions(at::kFloat));
    initialize(parameter, 11, master);
    StoredParameter entry{&parameter, {{"weights", master.to(weights)}}};
    if (masters) entry.states["master"] = master;
    stored.push_back(std::move(entry));
  }
  save_checkpoint({.run_folder = run,
                   .step = 30,
                   .run_id = "r",
                   .program_version = "0",
                   .model = gpt2(),
                   .collectives = single_rank_collectives()},
                  stored);
}

class Convert : public testing::Test {
 protected:
  void convert(const std::string& from, const std::string& to, bool to_checkpoint = false,
               const std::string& dtype = "") {
    testing::internal::CaptureStdout();
    std::string error = error_of([&] {
      run_convert(
          {.from = folder_ / from, .to = folder_ / to, .to_checkpoint = to_checkpoint, .dtype = dtype, .json = true});
    });
    output_ = testing::internal::GetCapturedStdout();
    if (!error.empty()) fail("{}", error);
  }
  std::string refusal(const std::string& from, const std::string& to, bool to_checkpoint = false,
                      const std::string& dtype = "") {
    const auto before = names_in(folder_.path());
    std::string error = error_of([&] { convert(from, to, to_checkpoint, dtype); });
    EXPECT_EQ(names_in(folder_.path()), before);
    EXPECT_EQ(output_, "");
    return error;
  }

  TemporaryFolder folder_;
  std::string output_;
};

TEST_F(Convert, CheckpointToHuggingFaceAndBack) {
  make_run(folder_ / "run", at::kFloat, false);
  convert("run", "hf");
  const nlohmann::json said = nlohmann::json::parse(output_);
  EXPECT_EQ(said["parameters"], parameter_count(build_program(gpt2())));
  EXPECT_EQ(said["dtype"], "fp32");
  convert("hf", "again", /*to_checkpoint=*/true);
  const Checkpoint first(find_checkpoint(folder_ / "run"));
  const Checkpoint second(find_checkpoint(folder_ / "again"));
  EXPECT_EQ(second.manifest().step, 0);
  EXPECT_TRUE(second.manifest().training_state.is_null());
  EXPECT_EQ(second.manifest().model, first.manifest().model);
  ASSERT_EQ(second.manifest().tensors.size(), first.manifest().tensors.size());
  for (const auto& [name, tensor] : first.manifest().tensors) {
    EXPECT_TRUE(at::equal(first.read_tensor(name), second.read_tensor(name))) << name;
  }
  convert("run/checkpoints/step_00000030/", "from-step");
  EXPECT_EQ(read_file(folder_ / "from-step/model.safetensors"), read_file(folder_ / "hf/model.safetensors"));
}

TEST_F(Convert, ExportsOfALowPrecisionRunComeFromTheMasters) {
  make_run(folder_ / "run", at::kBFloat16, true);
  convert("run", "hf");
  EXPECT_EQ(nlohmann::json::parse(output_)["dtype"], "fp32");
  HuggingFaceModel exported(folder_ / "hf");
  exported.match(global_tensors(build_program(gpt2()).parameters));
  const Checkpoint checkpoint(find_checkpoint(folder_ / "run"));
  EXPECT_TRUE(at::equal(exported.read_tensor("transformer.wte.weight"),
                        checkpoint.read_tensor("transformer.wte.weight", "master")));

  make_run(folder_ / "plain", at::kBFloat16, false);
  convert("plain", "hf-plain");
  EXPECT_EQ(nlohmann::json::parse(output_)["dtype"], "bf16");
  convert("hf-plain", "widened", /*to_checkpoint=*/true);
  EXPECT_EQ(nlohmann::json::parse(output_)["dtype"], "fp32");
}

TEST_F(Convert, RefusesWithoutTouchingAnything) {
  make_run(folder_ / "run", at::kFloat, false);
  EXPECT_THAT(refusal("nothing", "x"), HasSubstr("is no folder"));
  write_file(folder_ / "some/file", "");
  EXPECT_THAT(refusal("some", "x"), AllOf(HasSubstr("neither a run"), HasSubstr("Hugging Face")));
  EXPECT_THAT(refusal("run", "some"), HasSubstr("not empty"));
  EXPECT_THAT(refusal("run", "run"), HasSubstr("not empty"));
  EXPECT_THAT(refusal("run", "x", false, "fp8"), HasSubstr("'fp8'"));
  EXPECT_THAT(refusal("run", "x", true, "bf16"), HasSubstr("not bf16"));
}

/// A file-size limit makes a write fail in its middle, as a full disk does.
TEST_F(Convert, AFullDiskLeavesNothing) {
  make_run(folder_ / "run", at::kFloat, false);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5'000, 5'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { run_convert({.from = folder_ / "run", .to = folder_ / "hf"}); });
    write_file(folder_ / "error", error);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_THAT(read_file(folder_ / "error"),
              AllOf(HasSubstr("cannot write"), HasSubstr("model.safetensors"), HasSubstr("File too large")));
  EXPECT_EQ(names_in(folder_.path()), (std::set<std::string>{"error", "run"}));
}

TEST_F(Convert, WarnsOfATokenizerThatTheTableCannotHold) {
  make_run(folder_ / "run", at::kFloat, false);
  write_file(
      folder_ / "run/tokenizer.json",
      R"({"model":{"vocab":{"a":0,"b":40}},"added_tokens":[{"id":3,"content":"<|endoftext|>","special":true}]})");
  convert("run", "hf");
  EXPECT_THAT(nlohmann::json::parse(output_)["warnings"][0].get<std::string>(),
              AllOf(HasSubstr("41 entries"), HasSubstr("37 rows")));
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_ / "hf/config.json"))["eos_token_id"], 3);
  EXPECT_EQ(read_file(folder_ / "hf/tokenizer.json"), read_file(folder_ / "run/tokenizer.json"));
}

}  // namespace
}  // namespace paceline
