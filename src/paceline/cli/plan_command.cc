#include "paceline/base/error.h"
#include "paceline/cli/command.h"
#include "paceline/cluster/machine_memory.h"
#include "paceline/config/run_settings.h"
#include "paceline/data/data_manifest.h"
#include "paceline/plan/explain.h"
#include "paceline/plan/plan_document.h"
#include "paceline/plan/quantity_text.h"
#include "paceline/run/prepared_run.h"
#include "paceline/supervision/usable_cores.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace paceline {
namespace {

struct PlanOptions {
  std::string file;
  std::vector<std::string> overrides;
  int ranks = 0;
  bool json = false;
  std::string explain;
};

/// The model's shape; the data is read only where the size of the vocabulary must come from it.
ModelConfig planned_model(const RunSettings& settings) {
  const bool is_described = settings.model.vocab_size > 0 || !settings.model.from.empty();
  if (!is_described && settings.data.folder.empty()) {
    refuse("model.vocab_size is 0 and data.folder is empty: the size of the vocabulary comes from one of them");
  }
  return prepare_model(settings, is_described ? 0 : read_manifest(settings.data.folder).vocabulary_size);
}

Place planned_place(const RunSettings& settings, int ranks) {
  const int cores = usable_cores();
  Place place{.profile = find_machine_profile(cores), .cores = cores, .memory_bytes = usable_memory_bytes()};
  place.threads_per_rank = settings.train.threads_per_rank > 0 ? static_cast<int>(settings.train.threads_per_rank)
                                                               : threads_per_rank(cores, ranks).threads;
  return place;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

void print_table(const LayoutSearch& search, const Layout& own) {
  fmt::print("  {:<18} {:>10} {:>10} {:>8} {:>11} {:>8} {:>9} {:>9}\n", "layout", "step", "tokens/s", "MFU", "memory",
             "bubble", "messages", "waiting");
  for (const Plan& plan : search.plans) {
    const Layout& layout = plan.step.settings.parallel.layout;
    const StageUse& use = plan.simulation.use[plan.slowest_stage];
    fmt::print("{} {:<18} {:>10} {:>10.0f} {:>8} {:>11} {:>8} {:>9} {:>9}\n", layout == own ? "*" : " ", layout.text(),
               seconds_text(plan.step_time_s()), plan.tokens_per_s(), percent(plan.mfu()),
               bytes_text(plan.largest_memory().total()), percent(plan.bubble),
               percent(use.communication_s / plan.step_time_s()), percent(use.waiting_s / plan.step_time_s()));
  }
}

/// One line for each reason, with the layouts that it refuses.
void print_refused(const LayoutSearch& search) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const RefusedLayout& refused : search.refused) {
    const auto found = std::find_if(reasons.begin(), reasons.end(), [&](const auto& entry) { return entry.first == refused.reason; });
    auto& layouts = found == reasons.end() ? reasons.emplace_back(refused.reason, std::vector<std::string>{}).second : found->second;
    layouts.push_back(refused.layout.text());
  }
  if (!reasons.empty()) fmt::print("\n");
  for (const auto& [reason, layouts] : reasons) fmt::print("refused {}: {}\n", fmt::join(layouts, "  "), reason);
}

int explain_layout(const LayoutSearch& search, const Layout& layout, bool as_json) {
  for (const Plan& plan : search.plans) {
    if (plan.step.settings.parallel.layout != layout) continue;
    if (as_json) {
      fmt::print("{}\n", plan_document(plan).dump(1));
    } else {
      fmt::print("{}{}\n", explain_plan(plan), explain_profile(plan.place));
    }
    return 0;
  }
  for (const RefusedLayout& refused : search.refused) {
    if (refused.layout == layout) refuse("{} cannot run: {}", layout.text(), refused.reason);
  }
  throw_broken_invariant(__FILE__, __LINE__, "the layout is among those searched");
}

int plan_run(const PlanOptions& options) {
  const RunSettings settings = read_run_settings(options.file, options.overrides);
  const ModelConfig model = planned_model(settings);
  StepSettings step = resolve_step(settings, model);
  const Layout own = step.parallel.layout;
  const std::optional<Layout> explained =
      options.explain.empty() ? std::nullopt : std::optional(parse_layout(options.explain));
  const int ranks = options.ranks > 0 ? options.ranks : explained ? explained->world_size() : own.world_size();
  if (explained && explained->world_size() != ranks) {
    refuse("--explain {} is a layout of {} ranks, not of {}", explained->text(), explained->world_size(), ranks);
  }
  if (ranks != own.world_size() && settings.train.global_batch_size == 0) {
    // Without a batch of the run's own, all layouts share that of a purely data-parallel one, which each can divide.
    step.batch = resolve_batch(std::nullopt, step.batch.micro, step.batch.accumulation, ranks);
  }
  const Place place = planned_place(settings, ranks);
  const LayoutSearch search = search_layouts(step, ranks, place);
  if (explained) return explain_layout(search, *explained, options.json);
  if (options.json) {
    fmt::print("{}\n", search_document(search).dump(1));
    return search.plans.empty() ? static_cast<int>(ExitCode::failure) : 0;
  }

  fmt::print("{} of {} parameters, {}, on {} ranks; {} sequences of {} tokens a step\n", family_name(model.family),
             parameter_count(build_program(model)), step.precision, ranks, step.batch.global, step.sequence_length);
  fmt::print("{}\n\n", explain_profile(place));
  if (!search.plans.empty()) {
    print_table(search, own);
    fmt::print("\n{}\n", explain_best(search));
    fmt::print("memory: of the largest rank, without the process itself (libtorch, transport buffers)\n");
  }
  print_refused(search);
  if (search.plans.empty()) fail("{}: no layout of {} ranks fits", options.file, ranks);
  return 0;
}

}  // namespace

void define_plan(CLI::App& app, Invocation& invocation) {
  CLI::App* plan = app.add_subcommand("plan", "Predict step time and memory of every layout, the fastest first");
  auto options = std::make_shared<PlanOptions>();
  plan->add_option("run", options->file, "TOML file of the run")->required()->type_name("FILE");
  plan->add_option("--set", options->overrides, "Set a key of the run, e.g. parallel.tp=2 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  CLI::Option* nproc = plan->add_option("--nproc", options->ranks, "Ranks on this machine (default: those of [parallel])");
  CLI::Option* devices = plan->add_option("--devices", options->ranks, "The same as --nproc");
  for (CLI::Option* option : {nproc, devices}) option->type_name("N")->check(CLI::Range(1, 1 << 20));
  nproc->excludes(devices);
  plan->add_flag("--json", options->json, "One JSON document on standard output");
  plan->add_option("--explain", options->explain, "One layout in full, e.g. dp=2,tp=1,pp=2")->type_name("LAYOUT");
  plan->callback([options, &invocation] { invocation.run = [options] { return plan_run(*options); }; });
}

}  // namespace paceline
