#include "paceline/base/error.h"
#include "paceline/cli/at_least.h"
#include "paceline/cli/command.h"
#include "paceline/cli/engine.h"
#include "paceline/supervision/launch_environment.h"
#include "paceline/supervision/local_launcher.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <filesystem>
#include <memory>

namespace paceline {
namespace {

struct BenchTrainOptions {
  std::int64_t layers = 6, dim = 384, heads = 6, kv_heads = 2, ffn = 1024, vocab = 8192;
  std::int64_t sequence_length = 256, micro_batch = 8, steps = 12;
  std::string precision = "fp32";
  std::vector<std::string> overrides;
  int nproc = 1;
  bool json = false;

  RunSettings settings() const {
    std::vector<std::string> all = {
        "model.num_hidden_layers=" + std::to_string(layers), "model.hidden_size=" + std::to_string(dim),
        "model.num_attention_heads=" + std::to_string(heads), "model.num_key_value_heads=" + std::to_string(kv_heads),
        "model.intermediate_size=" + std::to_string(ffn), "model.vocab_size=" + std::to_string(vocab),
        "train.sequence_length=" + std::to_string(sequence_length), "train.micro_batch_size=" + std::to_string(micro_batch),
        "train.precision=" + precision, "parallel.dp=" + std::to_string(nproc)};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return parse_run_settings("", "bench train", all);
  }
};

/// A folder for the ranks' logs that is gone afterwards.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() / ("paceline-bench-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

int bench_train(const BenchTrainOptions& options, const std::vector<std::string>& arguments) {
  const RunSettings settings = options.settings();
  const Layout layout = resolve_parallel(settings).layout;
  const LaunchEnvironment launch = detect_launch();
  const int ranks = launch.source == "none" ? options.nproc : launch.world_size;
  if (layout.world_size() != ranks) {
    refuse("the layout {} needs {} ranks, but there are {}: set parallel.dp, tp and pp to it", layout.text(), layout.world_size(), ranks);
  }
  if (launch.source == "none" && ranks > 1) {
    const TemporaryFolder logs;
    return launch_local(ranks, arguments, {.log_folder = logs.path()});
  }
  return load_engine().bench_train({.settings = settings, .steps = options.steps, .json = options.json});
}

}  // namespace

void define_bench(CLI::App& app, Invocation& invocation) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine, or the training step on it");
  bench->require_subcommand(1);

  auto machine_options = std::make_shared<BenchMachineRequest>();
  CLI::App* machine = bench->add_subcommand("machine", "Measure products, memory, messages and disk into the profile that `plan` reads");
  machine->add_option("-o,--output", machine_options->output, "Profile file (default: the user's own)");
  machine->add_flag("--json", machine_options->json, "One JSON document");
  machine->callback([machine_options, &invocation] {
    invocation.run = [machine_options] { return load_engine().bench_machine(*machine_options); };
  });

  auto options = std::make_shared<BenchTrainOptions>();
  CLI::App* train = bench->add_subcommand("train", "The real training step on random tokens");
  train->add_option("--layers", options->layers, "Decoder layers")->capture_default_str();
  train->add_option("--dim", options->dim, "Width")->capture_default_str();
  train->add_option("--heads", options->heads, "Query heads")->capture_default_str();
  train->add_option("--kv-heads", options->kv_heads, "Key/value heads")->capture_default_str();
  train->add_option("--ffn", options->ffn, "Width of the feed-forward layer")->capture_default_str();
  train->add_option("--vocab", options->vocab, "Vocabulary")->capture_default_str();
  train->add_option("--sequence-length", options->sequence_length, "Tokens of a sequence")->capture_default_str();
  train->add_option("--micro-batch", options->micro_batch, "Sequences a rank and pass")->capture_default_str();
  train->add_option("--precision", options->precision, "fp32 or fp64")->capture_default_str();
  train->add_option("--steps", options->steps, "Measured steps, after 3 of warm-up")->capture_default_str()->check(at_least(1));
  train->add_option("--nproc", options->nproc, "Ranks on this machine, data-parallel unless --set says otherwise")
      ->capture_default_str()->check(at_least(1));
  train->add_option("--set", options->overrides, "key=value of a run's settings, e.g. parallel.tp=2")->take_all()->expected(1);
  train->add_flag("--json", options->json, "One JSON document");
  train->callback([options, &invocation] {
    invocation.run = [options] {
      std::vector<std::string> arguments = {"paceline", "bench", "train"};
      const auto add = [&](const char* name, const std::string& value) {
        arguments.push_back(name);
        arguments.push_back(value);
      };
      add("--layers", std::to_string(options->layers));
      add("--dim", std::to_string(options->dim));
      add("--heads", std::to_string(options->heads));
      add("--kv-heads", std::to_string(options->kv_heads));
      add("--ffn", std::to_string(options->ffn));
      add("--vocab", std::to_string(options->vocab));
      add("--sequence-length", std::to_string(options->sequence_length));
      add("--micro-batch", std::to_string(options->micro_batch));
      add("--precision", options->precision);
      add("--steps", std::to_string(options->steps));
      add("--nproc", std::to_string(options->nproc));
      for (const std::string& assignment : options->overrides) add("--set", assignment);
      if (options->json) arguments.push_back("--json");
      return bench_train(*options, arguments);
    };
  });
}

}  // namespace paceline
