#include "paceline/base/error.h"
#include "paceline/cli/at_least.h"
#include "paceline/cli/command.h"
#include "paceline/cli/engine.h"
#include "paceline/config/run_settings.h"
#include "paceline/run/prepared_run.h"
#include "paceline/supervision/launch_environment.h"
#include "paceline/supervision/local_launcher.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>

namespace paceline {
namespace {

struct TrainOptions {
  std::string file;
  std::vector<std::string> overrides;
  int nproc = 0;
  bool dry_run = false;
  bool json = false;
};

void check_rank_count(const Layout& layout, int ranks, const std::string& origin) {
  if (layout.world_size() == ranks) return;
  refuse("the layout {} needs {} x {} x {} = {} ranks, but there {} {} ({}): change parallel.dp, tp or pp, or start {}",
         layout.text(), layout.dp, layout.tp, layout.pp, layout.world_size(), ranks == 1 ? "is" : "are", ranks, origin,
         layout.world_size());
}

int train(const TrainOptions& options) {
  const RunSettings settings = read_run_settings(options.file, options.overrides);
  const LaunchEnvironment launch = detect_launch();
  const Layout layout = resolve_parallel(settings).layout;
  if (options.dry_run) {
    if (options.nproc > 0) check_rank_count(layout, options.nproc, "--nproc");
    prepare_run(settings);  // refuses in milliseconds what needs no torch to refuse
    return load_engine().train({.settings = settings, .dry_run = true, .json = options.json});
  }
  if (launch.source != "none") {  // this process is one rank: of torchrun, srun, mpirun or our own launcher
    check_rank_count(layout, launch.world_size, launch.text());
    return load_engine().train({.settings = settings, .json = options.json});
  }
  check_rank_count(layout, std::max(options.nproc, 1), options.nproc > 0 ? "--nproc" : "--nproc N starts N");
  prepare_run(settings);  // what no rank could run is refused here, once
  if (layout.world_size() == 1) return load_engine().train({.settings = settings, .json = options.json});
  std::vector<std::string> command = {"paceline", "train", options.file};
  for (const std::string& assignment : options.overrides) {
    command.push_back("--set");
    command.push_back(assignment);
  }
  if (options.json) command.push_back("--json");
  return launch_local(layout.world_size(), command,
                      {.log_folder = std::filesystem::path(settings.run.folder) / "logs",
                       .hang_timeout_s = settings.supervision.hang_timeout_s});
}

}  // namespace

void define_train(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model; the same command again resumes from the last checkpoint");
  command->add_option("file", options->file, "The run's TOML file")->required()->type_name("FILE");
  command->add_option("--nproc", options->nproc, "Start this many ranks on this machine")->check(at_least(1))->type_name("N");
  command->add_option("--set", options->overrides, "Set a key over the file, e.g. parallel.tp=2 (repeatable)")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command->add_flag("--dry-run", options->dry_run, "Check everything, say what would run, start nothing");
  command->add_flag("--json", options->json, "Standard output holds one JSON document: the run's summary");
  command->callback([options, &invocation] { invocation.run = [options] { return train(*options); }; });
}

}  // namespace paceline
