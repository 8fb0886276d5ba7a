#include "paceline/infer/evaluate.h"

#include "tiny_model.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/checkpoint/tensor_storage.h"
#include "paceline/comm/thread_communicator.h"
#include "paceline/config/run_settings.h"
#include "paceline/data/data_build.h"
#include "paceline/infer/decoder.h"
#include "paceline/infer/sequence_gradients.h"
#include "paceline/train/executor.h"
#include "paceline/train/shard_source.h"

#include <ATen/ops/dot.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace paceline {
namespace {

using testing::HasSubstr;

/// Negative log probability of `target` under a row of logits, the plain way.
double negative_log_probability(const at::Tensor& row, std::int64_t target) {
  const at::Tensor values = row.to(at::kDouble).contiguous();
  const double* value = values.const_data_ptr<double>();
  double sum = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) sum += std::exp(value[i]);
  return std::log(sum) - value[target];
}

class Evaluate : public testing::Test {
 protected:
  Evaluate() {
    for (int i = 0; i < 40; ++i) {
      std::string text = "document " + std::to_string(i) + ":";
      for (int word = 0; word < 30; ++word) text += fmt::format(" word{} caf\u00e9", random_bits(i, word) % 50);
      write_text(folder / fmt::format("text/{}.txt", i), text);
    }
    manifest = build_data({.input_paths = {(folder / "text").string()}, .output_folder = (folder / "data").string(),
                           .vocabulary_size = 280, .held_out_fraction = 0.2, .workers = 1},
                          {}, [](auto&&...) {})
                   .manifest;
    model = tiny_llama();
    model.vocab_size = manifest.vocabulary_size + 3;
    write_run(folder / "run", model);
    RunSettings settings;
    settings.run.folder = (folder / "run").string();
    settings.data.folder = (folder / "data").string();
    settings.train.sequence_length = 16;
    write_text(folder / "run/settings.toml", to_toml(settings));
    request = {.model = (folder / "run").string(), .micro_batch_size = 3, .precision = "fp64", .json = true};
  }

  nlohmann::json run() const {
    testing::internal::CaptureStdout();
    const int code = run_evaluate(request);
    const std::string output = testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0);
    return nlohmann::json::parse(output);
  }

  TemporaryFolder folder;
  DataManifest manifest;
  ModelConfig model;
  EvaluateRequest request;
};

TEST_F(Evaluate, EqualsTheSumByHand) {
  const IndexedShard shard((folder / "data/held_out").string());
  const std::int64_t samples = (shard.tokens() - 1) / 16;
  ASSERT_GE(samples, 4);
  ASSERT_NE(samples % 3, 0);  // the last micro-batch is smaller
  TinyModel tiny(model, "fp64");
  double sum = 0;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    std::vector<std::int64_t> tokens(17);
    shard.read(sample * 16, tokens);
    Decoder decoder(tiny.program, tiny.state, 16);
    const at::Tensor logits = decoder.append(std::span(tokens).first(16));
    for (std::int64_t t = 0; t < 16; ++t) sum += negative_log_probability(logits[t], tokens[static_cast<std::size_t>(t + 1)]);
  }
  const double targets = static_cast<double>(samples * 16);
  const nlohmann::json result = run();
  EXPECT_NEAR(result["loss"].get<double>(), sum / targets, 1e-9);
  EXPECT_NEAR(result["perplexity"].get<double>(), std::exp(sum / targets), 1e-6 * std::exp(sum / targets));
  EXPECT_EQ(result["targets"], samples * 16);
  EXPECT_EQ(result["samples"], samples);
  EXPECT_EQ(result["sequence_length"], 16);
  EXPECT_EQ(result["step"], 7);
  const double bytes = static_cast<double>(manifest.shard("held_out").text_bytes) * targets / static_cast<double>(shard.tokens());
  EXPECT_NEAR(result["bits_per_byte"].get<double>(), sum / std::log(2.0) / bytes, 1e-9);
  EXPECT_EQ(result["text_bytes"], std::llround(bytes));
  EXPECT_EQ(result["bigram_loss"], *manifest.bigram_held_out_loss);
}

TEST_F(Evaluate, EqualsTheTrainersOwnEvaluation) {
  TinyModel tiny(model, "fp64");
  MemoryAccount account;
  const ShardSource source((folder / "data/held_out").string(), 16, 1, false, tiny.program.model.vocab_size);
  double trainers = 0;
  run_ranks(1, [&](int rank, Hub& hub) {
    CommunicatorSet communicators(hub.transport(rank), Layout{});
    ModelState state(tiny.program, 0, parse_precision("fp64"), 4096, true, account);
    state.initialize_weights(3);
    Recorder recorder;
    Executor executor(tiny.program, {}, state, communicators, {.micro_batch_size = 4, .micro_batches = 1, .sequence_length = 16},
                      PipelineSchedule::one_forward_one_backward, recorder, account);
    trainers = executor.evaluate(source, 6, 1).loss();
  });
  request.samples = 6;
  EXPECT_NEAR(run()["loss"].get<double>(), trainers, 1e-12);
}

TEST_F(Evaluate, MaskedTargetsDoNotCount) {
  const IndexedShard shard((folder / "data/held_out").string());
  std::string mask(static_cast<std::size_t>(shard.tokens()), '\0');
  mask[5] = 1;  // the target of position 4 of the first sample
  write_text(folder / "data/held_out.mask", mask);
  std::vector<std::int64_t> tokens(6);
  shard.read(0, tokens);
  TinyModel tiny(model, "fp64");
  Decoder decoder(tiny.program, tiny.state, 16);
  const double expected = negative_log_probability(decoder.append(std::span(tokens).first(5))[4], tokens[5]);
  const nlohmann::json result = run();
  EXPECT_EQ(result["targets"], 1);
  EXPECT_NEAR(result["loss"].get<double>(), expected, 1e-9);
}

TEST_F(Evaluate, RefusesInOneLine) {
  const auto error = [&](auto change) {
    EvaluateRequest changed = request;
    change(changed);
    return error_of([&] { run_evaluate(changed); });
  };
  EXPECT_THAT(error([](auto& r) { r.sequence_length = 41; }), HasSubstr("max_position_embeddings of 40"));
  EXPECT_THAT(error([](auto& r) { r.shard = "other"; }), HasSubstr("held_out"));
  EXPECT_THAT(error([](auto& r) { r.data_folder = "/nowhere"; }), HasSubstr("/nowhere"));
  EXPECT_THAT(error([](auto& r) { r.tokens = {1}; }), HasSubstr("at least two"));
  EXPECT_THAT(error([](auto& r) { r.tokens = {1, -1}; }), HasSubstr("-1 is outside the model's vocabulary"));
  EXPECT_THAT(error([](auto& r) { r.tokens = std::vector<std::int64_t>(41, 1); }), HasSubstr("41"));
  write_run(folder / "small", tiny_llama());
  EXPECT_THAT(error([&](auto& r) {
                r.model = (folder / "small").string();
                r.data_folder = (folder / "data").string();
              }),
              HasSubstr(fmt::format("tokenizer of the data has {} entries, but the model's vocabulary is 131", manifest.vocabulary_size)));
  EXPECT_THAT(error([&](auto& r) { r.model = (folder / "small").string(); }), HasSubstr("--data FOLDER"));
}

TEST_F(Evaluate, SequenceGradientsEqualDifferenceQuotients) {
  const std::vector<std::int64_t> tokens = random_tokens(12, model.vocab_size);
  request.tokens = tokens;
  request.dump = (folder / "dump.safetensors").string();
  const double loss = run()["loss"];
  const SafetensorsFile dump(request.dump);
  const at::Tensor logits = mapped_tensor(dump, *dump.find("logits"));
  ASSERT_EQ(logits.sizes().vec(), (Shape{12, model.vocab_size}));
  double by_hand = 0;
  for (std::int64_t t = 0; t < 11; ++t) by_hand += negative_log_probability(logits[t], tokens[static_cast<std::size_t>(t + 1)]) / 11;
  EXPECT_NEAR(loss, by_hand, 1e-10);

  // d loss / d epsilon of the weights moved by epsilon x gradient is the squared gradient norm of that tensor.
  LoadedModel loaded(folder / "run", {.precision = "fp64"});
  for (std::size_t i = 0; i < loaded.program().parameters.size(); ++i) {
    const Parameter& parameter = loaded.program().parameters[i];
    if (parameter.blocks.size() != 1) continue;  // fused ones are held against transformers
    const at::Tensor gradient = mapped_tensor(dump, *dump.find(parameter.blocks[0].tensor));
    const double squared = at::dot(gradient.reshape(-1), gradient.reshape(-1)).const_data_ptr<double>()[0];
    const double epsilon = 1e-4 / std::sqrt(squared);
    const at::Tensor& weight = loaded.state().weight(static_cast<int>(i));
    weight.add_(gradient, epsilon);
    const double above = sequence_gradients(loaded, tokens).loss;
    weight.add_(gradient, -2 * epsilon);
    const double below = sequence_gradients(loaded, tokens).loss;
    weight.add_(gradient, epsilon);
    EXPECT_NEAR((above - below) / (2 * epsilon), squared, 1e-5 * squared) << parameter.name;
  }
}

}  // namespace
}  // namespace paceline
