#include "paceline/checkpoint/checkpoint.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/tensor_storage.h"
#include "paceline/parallel/rank_program.h"
#include "temporary_folder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <barrier>
#include <csignal>
#include <limits>
#include <thread>

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// The collectives of ranks that are threads of this process.
class ThreadCollectives {
 public:
  explicit ThreadCollectives(int ranks) : texts_(static_cast<std::size_t>(ranks)), barrier_(ranks) {}

  SaveCollectives of(int rank) {
    return {.all_gather_text =
                [this, rank](const std::string& text) {
                  texts_[static_cast<std::size_t>(rank)] = text;
                  barrier_.arrive_and_wait();
                  std::vector<std::string> all = texts_;
                  barrier_.arrive_and_wait();
                  return all;
                },
            .barrier = [this] { barrier_.arrive_and_wait(); }};
  }

 private:
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

ModelConfig tiny_llama() {
  return {.family = ModelFamily::llama,
          .vocab_size = 131,
          .hidden_size = 16,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 4,
          .intermediate_size = 24,
          .max_position_embeddings = 32,
          .tie_word_embeddings = true,
          .attention_bias = true};
}

ModelConfig tiny_gpt2() {
  return {.family = ModelFamily::gpt2,
          .vocab_size = 131,
          .hidden_size = 16,
          .num_hidden_layers = 3,
          .num_attention_heads = 4,
          .num_key_value_heads = 4,
          .head_dim = 4,
          .intermediate_size = 24,
          .max_position_embeddings = 32,
          .tie_word_embeddings = true,
          .activation = "gelu_new"};
}

/// One rank's parameters with states that differ from each other; every layout's are parts of the same global tensors.
struct Rank {
  Program program;
  std::vector<StoredParameter> stored;
};

void fill_state(const Parameter& parameter, std::uint64_t seed, const at::Tensor& values) {
  Parameter random = parameter;
  random.initialization = Initialization::normal;
  initialize(random, seed, values);
}

Rank make_rank(const ModelConfig& model, const Layout& layout, int rank, std::uint64_t seed,
               at::ScalarType weights = at::kFloat, at::ScalarType moments = at::kFloat) {
  Rank made{.program = build_rank_program(model, {.layout = layout}, layout.coordinate(rank))};
  for (const Parameter& parameter : made.program.parameters) {
    StoredParameter stored{.parameter = &parameter};
    stored.states["weights"] = at::empty(parameter.shape, weights);
    stored.states["exp_avg"] = at::empty(parameter.shape, moments);
    stored.states["exp_avg_sq"] = at::empty(parameter.shape, moments);
    std::uint64_t offset = 0;
    for (const auto& [state, values] : stored.states) fill_state(parameter, seed + offset++, values);
    made.stored.push_back(std::move(stored));
  }
  return made;
}

SaveRequest request_of(const std::filesystem::path& run, const ModelConfig& model, std::int64_t step) {
  return {.run_folder = run,
          .step = step,
          .run_id = "test",
          .program_version = "0.1.0",
          .model = model,
          .training_state = {{"step", step}, {"optimizer_steps", 10'001}, {"loss", 0.1}},
          .collectives = single_rank_collectives()};
}

/// Saves from every rank of a layout, one thread each; returns the ranks' errors.
std::vector<std::string> save_all(SaveRequest request, const Layout& layout, std::vector<Rank>& ranks) {
  request.layout = layout;
  ThreadCollectives collectives(layout.world_size());
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    threads.emplace_back([&, rank] {
      SaveRequest own = request;
      own.rank = rank;
      own.collectives = collectives.of(rank);
      errors[static_cast<std::size_t>(rank)] =
          error_of([&] { save_checkpoint(own, ranks[static_cast<std::size_t>(rank)].stored); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<std::string> save_layout(const SaveRequest& request, const Layout& layout, std::uint64_t seed) {
  std::vector<Rank> ranks;
  for (int rank = 0; rank < layout.world_size(); ++rank) ranks.push_back(make_rank(request.model, layout, rank, seed));
  return save_all(request, layout, ranks);
}

void expect_equal(const Rank& a, const Rank& b) {
  ASSERT_EQ(a.stored.size(), b.stored.size());
  for (std::size_t i = 0; i < a.stored.size(); ++i) {
    for (const auto& [state, values] : a.stored[i].states) {
      const at::Tensor& other = b.stored[i].states.at(state);
      EXPECT_EQ(values.scalar_type(), other.scalar_type());
      EXPECT_TRUE(at::equal(values, other)) << a.stored[i].parameter->name << " " << state;
    }
  }
}

class CheckpointOfLayouts : public testing::TestWithParam<std::tuple<ModelConfig, Layout>> {};

TEST_P(CheckpointOfLayouts, IsReadByEveryOtherLayout) {
  const auto& [model, writer] = GetParam();
  TemporaryFolder run;
  for (const std::string& error : save_layout(request_of(run.path(), model, 120), writer, 1)) EXPECT_EQ(error, "");
  const Checkpoint checkpoint(find_checkpoint(run.path()));
  EXPECT_EQ(checkpoint.folder().filename(), "step_00000120");
  EXPECT_EQ(checkpoint.manifest().layout, writer);
  EXPECT_EQ(checkpoint.manifest().training_state["optimizer_steps"], 10'001);
  EXPECT_EQ(names_in(run / "checkpoints"), (std::set<std::string>{"latest", "step_00000120"}));
  for (const Layout reader : {Layout{1, 1, 1}, Layout{2, 2, 1}, Layout{1, 1, 2}, Layout{1, 2, 3}, Layout{1, 4, 1}}) {
    for (int rank = 0; rank < reader.world_size(); ++rank) {
      const Rank expected = make_rank(model, reader, rank, 1);
      const Rank loaded = make_rank(model, reader, rank, 99);
      checkpoint.load(loaded.stored);
      expect_equal(loaded, expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CheckpointOfLayouts,
                         testing::Combine(testing::Values(tiny_llama(), tiny_gpt2()),
                                          testing::Values(Layout{1, 1, 1}, Layout{2, 1, 1}, Layout{1, 2, 1},
                                                          Layout{1, 1, 2}, Layout{2, 2, 2}, Layout{1, 4, 1},
                                                          Layout{1, 2, 3})));

TEST(Checkpoint, HoldsEachGlobalElementOnce) {
  TemporaryFolder run;
  ASSERT_EQ(save_layout(request_of(run.path(), tiny_llama(), 1), {2, 4, 3}, 1), std::vector<std::string>(24, ""));
  const Checkpoint checkpoint(find_checkpoint(run.path()));
  const Program whole = build_program(tiny_llama());
  std::uint64_t bytes = 0;
  for (const SavedFile& file : checkpoint.manifest().files) {
    const SafetensorsFile opened(checkpoint.folder() / file.name);
    for (const SafetensorsTensor& tensor : opened.tensors()) bytes += tensor.end - tensor.begin;
  }
  EXPECT_EQ(bytes, static_cast<std::uint64_t>(parameter_count(whole)) * 4 * 3);
  EXPECT_EQ(checkpoint.manifest().tensors.at("model.embed_tokens.weight").shape, (Shape{131, 16}));
}

TEST(Checkpoint, KeepsTypesBitsAndCounters) {
  TemporaryFolder run;
  const ModelConfig model = tiny_llama();
  for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
    Rank saved = make_rank(model, {}, 0, 1, at::kBFloat16, moments);
    for (StoredParameter& stored : saved.stored) {
      stored.states["master"] = at::empty(stored.parameter->shape, at::kFloat);
      fill_state(*stored.parameter, 5, stored.states["master"]);
      stored.states["weights"].copy_(stored.states["master"]);
    }
    save_checkpoint(request_of(run.path(), model, 3), saved.stored);
    Rank loaded = make_rank(model, {}, 0, 2, at::kBFloat16, moments);
    for (StoredParameter& stored : loaded.stored)
      stored.states["master"] = at::full(stored.parameter->shape, 3.0, at::kFloat);
    const Checkpoint checkpoint(find_checkpoint(run.path()));
    checkpoint.load(loaded.stored);
    expect_equal(loaded, saved);
    for (const StoredParameter& stored : loaded.stored) {
      EXPECT_TRUE(at::equal(stored.states.at("master").to(at::kBFloat16), stored.states.at("weights")));
    }
    EXPECT_EQ(checkpoint.manifest().training_state["optimizer_steps"].get<std::int64_t>(), 10'001);
  }
}

TEST(Checkpoint, RefusesAnotherTypeUnlessAsked) {
  TemporaryFolder run;
  const ModelConfig model = tiny_gpt2();
  const Rank saved = make_rank(model, {}, 0, 1);
  save_checkpoint(request_of(run.path(), model, 3), saved.stored);
  const Checkpoint checkpoint(find_checkpoint(run.path()));
  const Rank wide = make_rank(model, {}, 0, 2, at::kDouble, at::kDouble);
  EXPECT_THAT(error_of([&] { checkpoint.load(wide.stored); }),
              AllOf(HasSubstr("are F32"), HasSubstr("keeps them as F64")));
  checkpoint.load(wide.stored, {.convert_types = true});
  EXPECT_TRUE(at::equal(wide.stored[0].states.at("weights"), saved.stored[0].states.at("weights").to(at::kDouble)));
}

TEST(Checkpoint, NamesTheFirstKeyThatDiffersFromTheModel) {
  TemporaryFolder run;
  ModelConfig model = tiny_llama();
  save_checkpoint(request_of(run.path(), model, 3), make_rank(model, {}, 0, 1).stored);
  const Checkpoint checkpoint(find_checkpoint(run.path()));
  checkpoint.require_model(model);
  model.initializer_range = 0.5;
  checkpoint.require_model(model);
  model.intermediate_size = 48;
  EXPECT_THAT(error_of([&] { checkpoint.require_model(model); }),
              HasSubstr("intermediate_size is 24 there and 48 in this run"));
  const Rank other = make_rank(model, {}, 0, 1);
  EXPECT_THAT(
      error_of([&] { checkpoint.load(other.stored); }),
      AllOf(HasSubstr("tensor 'model.layers.0.mlp.gate_proj.weight' has shape [24, 16]"), HasSubstr("[48, 16]")));
  EXPECT_THAT(error_of([&] { checkpoint.require_model(tiny_gpt2()); }),
              HasSubstr("model_type is llama there and gpt2 in this run"));
  const Rank foreign = make_rank(tiny_gpt2(), {}, 0, 1);
  EXPECT_THAT(error_of([&] { checkpoint.load(foreign.stored); }), HasSubstr("has no tensor 'transformer.wte.weight'"));
}

TEST(Checkpoint, SaysWhichStateIsMissing) {
  TemporaryFolder run;
  Rank saved = make_rank(tiny_llama(), {}, 0, 1);
  for (StoredParameter& stored : saved.stored) stored.states.erase("exp_avg");
  save_checkpoint(request_of(run.path(), tiny_llama(), 3), saved.stored);
  const Checkpoint checkpoint(find_checkpoint(run.path()));
  EXPECT_TRUE(checkpoint.manifest().has_state("weights"));
  EXPECT_FALSE(checkpoint.manifest().has_state("exp_avg"));
  const Rank reader = make_rank(tiny_llama(), {}, 0, 1);
  EXPECT_THAT(error_of([&] { checkpoint.load(reader.stored); }),
              HasSubstr("no exp_avg of tensor 'model.embed_tokens.weight'"));
}

/// A saved checkpoint of two ranks to damage.
class DamagedCheckpoint : public testing::Test {
 protected:
  DamagedCheckpoint() {
    for (const std::string& error : save_layout(request_of(run_.path(), tiny_llama(), 40), {1, 2, 1}, 1))
      EXPECT_EQ(error, "");
    folder_ = run_ / "checkpoints/step_00000040";
  }
  std::string load_error() {
    return error_of([&] {
      const Rank reader = make_rank(tiny_llama(), {}, 0, 50);
      const Rank before = make_rank(tiny_llama(), {}, 0, 50);
      const Checkpoint checkpoint(find_checkpoint(run_.path()));
      const std::string error = error_of([&] { checkpoint.load(reader.stored); });
      expect_equal(reader, before);  // nothing was used before all was verified
      if (!error.empty()) fail("{}", error);
    });
  }

  TemporaryFolder run_;
  std::filesystem::path folder_;
};

TEST_F(DamagedCheckpoint, ACorruptByteNamesFileAndTensor) {
  const auto path = folder_ / "exp_avg_sq_rank_00001.safetensors";
  const SafetensorsFile file(path);
  const SafetensorsTensor& tensor = file.tensors().back();
  const std::size_t header = std::filesystem::file_size(path) - tensor.end;
  flip_byte(path, header + tensor.begin + 5);
  const std::string name =
      tensor.name.substr(tensor.name.find('/') + 1, tensor.name.find('[') - tensor.name.find('/') - 1);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("exp_avg_sq_rank_00001.safetensors is damaged"),
                                  HasSubstr("exp_avg_sq of tensor '" + name + "' are damaged")));
}

TEST_F(DamagedCheckpoint, EveryByteOfAHeaderCounts) {
  const auto path = folder_ / "weights_rank_00000.safetensors";
  const std::string good = read_file(path);
  for (std::size_t offset = 0; offset < 400; offset += 7) {
    flip_byte(path, offset);
    EXPECT_THAT(load_error(), HasSubstr("weights_rank_00000.safetensors")) << offset;
    write_file(path, good);
  }
}

TEST_F(DamagedCheckpoint, TruncatedAndMissingFiles) {
  const auto path = folder_ / "weights_rank_00001.safetensors";
  const std::string good = read_file(path);
  write_file(path, good.substr(0, good.size() - 1));
  EXPECT_THAT(load_error(), AllOf(HasSubstr("weights_rank_00001.safetensors"), HasSubstr("truncated")));
  std::filesystem::remove(path);
  EXPECT_THAT(load_error(), AllOf(HasSubstr("lacks its file weights_rank_00001.safetensors")));
}

TEST_F(DamagedCheckpoint, ABrokenManifest) {
  const auto path = folder_ / "manifest.json";
  const std::string good = read_file(path);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    write_file(path, text.replace(at, from.size(), to));
    return load_error();
  };
  EXPECT_THAT(replaced("10001", "10002"),
              AllOf(HasSubstr("manifest.json"), HasSubstr("does not match its own checksum")));
  EXPECT_THAT(replaced("\"schema_version\": 1", "\"schema_version\": 2"),
              AllOf(HasSubstr("schema version 2"), HasSubstr("reads up to 1")));
  EXPECT_THAT(replaced("\"xxh3\"", "\"xxh4\""), HasSubstr("manifest.json"));
  write_file(path, good.substr(0, good.size() / 2));
  EXPECT_THAT(load_error(), HasSubstr("damaged or truncated"));
  write_file(path, "[]");
  EXPECT_THAT(load_error(), HasSubstr("no valid JSON object"));
  write_file(path, good);
  EXPECT_EQ(error_of([&] { Checkpoint{folder_}; }), "");
}

TEST_F(DamagedCheckpoint, AForgedManifestWithAHoleOrAnEscape) {
  const auto path = folder_ / "manifest.json";
  Manifest manifest = parse_manifest(read_file(path), path);
  SavedState& state = manifest.tensors.at("model.norm.weight").states.at("weights");
  const SavedState good = state;
  state.blocks.clear();
  EXPECT_THAT(error_of([&] { parse_manifest(manifest_text(manifest), path); }),
              HasSubstr("weights 'model.norm.weight' holds 0 of the 16"));
  state = good;
  state.blocks.push_back(state.blocks.front());
  EXPECT_THAT(error_of([&] { parse_manifest(manifest_text(manifest), path); }), HasSubstr("twice"));
  state = good;
  state.blocks.front().extent = {1'000'000};
  EXPECT_THAT(error_of([&] { parse_manifest(manifest_text(manifest), path); }),
              HasSubstr("outside the tensor's shape"));
  state = good;
  manifest.files.push_back({.name = "../../etc/passwd"});
  EXPECT_THAT(error_of([&] { parse_manifest(manifest_text(manifest), path); }), HasSubstr("outside its folder"));
  manifest.files.pop_back();
  manifest.training_state = nullptr;
  for (int depth = 0; depth < 300; ++depth) manifest.training_state = nlohmann::json::array({manifest.training_state});
  EXPECT_THAT(error_of([&] { parse_manifest(manifest_text(manifest), path); }), HasSubstr("no valid JSON"));
  EXPECT_THAT(error_of([&] { parse_manifest(R"({"schema_version": 1e300})", path); }), HasSubstr("whole number"));
  EXPECT_THAT(error_of([&] { parse_manifest(R"({"a": )" + std::string(200'000, '['), path); }),
              HasSubstr("no valid JSON"));
}

TEST_F(DamagedCheckpoint, LatestNamesWhatIsNotThere) {
  save_layout(request_of(run_.path(), tiny_llama(), 80), {1, 2, 1}, 1);
  std::filesystem::remove_all(run_ / "checkpoints/step_00000080");
  EXPECT_THAT(load_error(), AllOf(HasSubstr("names step_00000080, which is missing"), HasSubstr("step_00000040")));
  std::filesystem::create_directory(run_ / "checkpoints/step_00000080");
  EXPECT_THAT(load_error(), HasSubstr("incomplete (no manifest.json)"));
  write_file(run_ / "checkpoints/latest", "../../elsewhere\n");
  EXPECT_THAT(load_error(), HasSubstr("no checkpoint's name"));
  std::filesystem::remove(run_ / "checkpoints/latest");
  EXPECT_EQ(find_checkpoint(run_.path()).filename(), "step_00000040");
}

TEST(RunFolder, ARunThatHasNotSavedHasNoCheckpoint) {
  TemporaryFolder run;
  EXPECT_EQ(latest_checkpoint(run.path()), std::nullopt);
  EXPECT_THAT(error_of([&] { find_checkpoint(run.path()); }), HasSubstr("holds no checkpoint"));
  EXPECT_THAT(error_of([&] { find_checkpoint(run / "none"); }), HasSubstr("does not exist"));
  std::filesystem::create_directories(run / "checkpoints/step_00000007.tmp-x");
  EXPECT_EQ(latest_checkpoint(run.path()), std::nullopt);
  std::filesystem::create_directories(run / "checkpoints/step_00000007");
  EXPECT_THAT(error_of([&] { find_checkpoint(run / "checkpoints/step_00000007"); }),
              HasSubstr("no complete checkpoint"));
}

TEST(SaveCheckpoint, AKilledSaveLeavesThePreviousOne) {
  TemporaryFolder run;
  const ModelConfig model = tiny_llama();
  const Rank first = make_rank(model, {}, 0, 1);
  save_checkpoint(request_of(run.path(), model, 10), first.stored);
  const pid_t child = fork();
  if (child == 0) {
    SaveRequest request = request_of(run.path(), model, 20);
    request.collectives.barrier = [] { raise(SIGKILL); };
    save_checkpoint(request, first.stored);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names_in(run / "checkpoints"),
            (std::set<std::string>{"latest", "step_00000010", "step_00000020.tmp-test"}));
  const Rank loaded = make_rank(model, {}, 0, 2);
  Checkpoint(find_checkpoint(run.path())).load(loaded.stored);
  expect_equal(loaded, first);
  remove_unfinished_saves(run.path());
  EXPECT_EQ(names_in(run / "checkpoints"), (std::set<std::string>{"latest", "step_00000010"}));
}

TEST(SaveCheckpoint, AFullDiskIsToldToAllAndLeavesThePreviousOne) {
  TemporaryFolder run;
  const ModelConfig model = tiny_llama();
  std::vector<Rank> ranks;
  const Layout layout{1, 2, 1};
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(make_rank(model, layout, rank, 1));
  ASSERT_EQ(save_all(request_of(run.path(), model, 10), layout, ranks), std::vector<std::string>(2, ""));
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{9'000, 9'000};  // stands for a full disk: writes fail in their middle
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::vector<std::string> errors = save_all(request_of(run.path(), model, 20), layout, ranks);
    write_file(run / "errors", errors[0] + "\n" + errors[1]);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const std::string errors = read_file(run / "errors");
  const std::size_t line = errors.find('\n');
  ASSERT_NE(line, std::string::npos);
  EXPECT_EQ(errors.substr(0, line), errors.substr(line + 1));
  EXPECT_THAT(errors, AllOf(StartsWith("checkpoint of step 20 was not saved: rank 0: cannot write"),
                            HasSubstr("File too large")));
  EXPECT_EQ(names_in(run / "checkpoints"), (std::set<std::string>{"latest", "step_00000010"}));
  EXPECT_EQ(find_checkpoint(run.path()).filename(), "step_00000010");
}

TEST(SaveCheckpoint, NonFiniteWeightsAreNeverSavedAndDeleteNothing) {
  TemporaryFolder run;
  const ModelConfig model = tiny_llama();
  const Layout layout{1, 1, 2};
  std::vector<Rank> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(make_rank(model, layout, rank, 1));
  SaveRequest request = request_of(run.path(), model, 10);
  request.keep_last = 1;
  ASSERT_EQ(save_all(request, layout, ranks), std::vector<std::string>(2, ""));
  for (StoredParameter& stored : ranks[1].stored) {
    if (stored.parameter->name == "final_norm.weight")
      stored.states["weights"][3] = std::numeric_limits<double>::quiet_NaN();
  }
  request.step = 20;
  for (const std::string& error : save_all(request, layout, ranks)) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1"), HasSubstr("weights of tensor 'model.norm.weight' are not finite")));
  }
  EXPECT_EQ(names_in(run / "checkpoints"), (std::set<std::string>{"latest", "step_00000010"}));
}

TEST(SaveCheckpoint, KeepsTheLastOnesAndReplacesAStep) {
  TemporaryFolder run;
  const ModelConfig model = tiny_gpt2();
  Rank rank = make_rank(model, {}, 0, 1);
  for (std::int64_t step = 10; step <= 40; step += 10) {
    SaveRequest request = request_of(run.path(), model, step);
    request.keep_last = 2;
    save_checkpoint(request, rank.stored);
  }
  EXPECT_EQ(names_in(run / "checkpoints"), (std::set<std::string>{"latest", "step_00000030", "step_00000040"}));
  const Rank other = make_rank(model, {}, 0, 77);
  save_checkpoint(request_of(run.path(), model, 40), other.stored);
  EXPECT_EQ(names_in(run / "checkpoints"), (std::set<std::string>{"latest", "step_00000030", "step_00000040"}));
  Checkpoint(find_checkpoint(run.path())).load(rank.stored);
  expect_equal(rank, other);
}

TEST(SaveCheckpoint, WritesLogicalValuesOfViews) {
  // T35: a stride-0 and a column-major storage are saved as their values.
  TemporaryFolder run;
  const ModelConfig model = tiny_llama();
  Rank rank = make_rank(model, {}, 0, 1);
  std::vector<at::Tensor> expected;
  for (StoredParameter& stored : rank.stored) {
    at::Tensor& weights = stored.states["weights"];
    if (weights.dim() == 2) weights = weights.t().contiguous().t();
    if (weights.dim() == 1) weights = weights.narrow(0, 2, 1).expand(weights.sizes());
    expected.push_back(weights.clone());
  }
  save_checkpoint(request_of(run.path(), model, 1), rank.stored);
  const Rank loaded = make_rank(model, {}, 0, 2);
  Checkpoint(find_checkpoint(run.path())).load(loaded.stored);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::equal(loaded.stored[i].states.at("weights"), expected[i]));
}

TEST(SaveCheckpoint, SameInputSameBytes) {
  TemporaryFolder run;
  const ModelConfig model = tiny_llama();
  const Rank rank = make_rank(model, {}, 0, 1);
  save_checkpoint(request_of(run / "a", model, 1), rank.stored);
  save_checkpoint(request_of(run / "b", model, 1), rank.stored);
  for (const std::string& name : names_in(run / "a/checkpoints/step_00000001")) {
    EXPECT_EQ(read_file(run / "a/checkpoints/step_00000001" / name),
              read_file(run / "b/checkpoints/step_00000001" / name));
  }
}

}  // namespace
}  // namespace paceline
