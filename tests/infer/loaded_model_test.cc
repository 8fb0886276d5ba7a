#include "paceline/infer/loaded_model.h"

#include "tiny_model.h"

#include "paceline/checkpoint/huggingface_model.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LoadedModel, RunCheckpointAndHuggingFaceFolderGiveTheSameWeights) {
  for (const ModelConfig& config : {tiny_llama(), tiny_gpt2()}) {
    const TemporaryFolder folder;
    const std::filesystem::path checkpoint = write_run(folder / "run", config);
    const Checkpoint saved(checkpoint);
    write_huggingface_model(folder / "hf", {.config = {.model = config},
                                            .tensors = global_tensors(build_program(config).parameters),
                                            .read = [&](const std::string& name) { return saved.read_tensor(name); },
                                            .type = ElementType::f64});
    TinyModel original(config, "fp64");
    for (const std::filesystem::path& path : {folder / "run", folder / "run/", checkpoint, folder / "hf"}) {
      LoadedModel model(path, {.precision = "fp64"});
      EXPECT_EQ(model.config().hidden_size, 32);
      EXPECT_EQ(model.step().has_value(), path != folder / "hf") << path;
      for (std::size_t i = 0; i < original.program.parameters.size(); ++i) {
        const int index = static_cast<int>(i);
        EXPECT_TRUE(at::equal(model.state().weight(index), original.state.weight(index)))
            << path << ": " << original.program.parameters[i].name;
      }
      EXPECT_FALSE(model.state().flat_gradients.defined());
    }
    EXPECT_EQ(*LoadedModel(checkpoint).step(), 7);
    EXPECT_EQ(LoadedModel(checkpoint).state().weight(0).scalar_type(), at::kFloat);
    EXPECT_TRUE(LoadedModel(checkpoint, {.with_gradients = true}).state().gradient(0).defined());
  }
}

TEST(LoadedModel, WrongPathsSayWhatAModelMayBe) {
  const TemporaryFolder folder;
  const auto kinds = AllOf(HasSubstr("run's folder"), HasSubstr("checkpoint's folder"), HasSubstr("Hugging Face folder"));
  write_text(folder / "file", "text");
  write_text(folder / "empty" / "notes.txt", "text");
  EXPECT_THAT(error_of([&] { LoadedModel(folder / "nowhere"); }), AllOf(HasSubstr("nowhere does not exist"), kinds));
  EXPECT_THAT(error_of([&] { LoadedModel(folder / "file"); }), AllOf(HasSubstr("file is no folder"), kinds));
  EXPECT_THAT(error_of([&] { LoadedModel(folder / "empty"); }), AllOf(HasSubstr("empty is no model"), kinds));
}

TEST(LoadedModel, ARunWithoutACheckpointSaysSo) {
  const TemporaryFolder folder;
  write_text(folder / "run/settings.toml", "");
  EXPECT_THAT(error_of([&] { LoadedModel(folder / "run"); }), HasSubstr("holds no checkpoint"));
}

TEST(LoadedModel, UnknownPrecisionIsRefused) {
  const TemporaryFolder folder;
  write_run(folder / "run", tiny_llama());
  EXPECT_THAT(error_of([&] { LoadedModel(folder / "run", {.precision = "fp8"}); }), HasSubstr("'fp8'"));
}

}  // namespace
}  // namespace paceline
