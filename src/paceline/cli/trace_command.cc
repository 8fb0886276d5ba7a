#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "paceline/base/error.h"
#include "paceline/cli/command.h"
#include "paceline/trace/chrome_export.h"
#include "paceline/trace/report_format.h"

namespace paceline {
namespace {

struct ReportOptions {
  std::filesystem::path run;
  bool json = false;
  std::optional<std::uint32_t> step;
};

struct ExportOptions {
  std::filesystem::path run;
  std::filesystem::path to;
};

void print_notices(const std::vector<std::string>& notices) {
  for (const std::string& notice : notices) fmt::print(stderr, "note: {}\n", notice);
}

int report_trace(const ReportOptions& options) {
  const RunTraces traces = read_run_traces(options.run);
  const auto plan = read_plan_prediction(options.run / "plan.json");
  const TraceReport report = build_trace_report(traces, plan, options.step);
  print_notices(report.notices);
  if (options.json) {
    fmt::print("{}\n", report_as_json(report).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}", report_as_text(report));
  }
  return 0;
}

int export_trace(const ExportOptions& options) {
  const RunTraces traces = read_run_traces(options.run);
  const auto plan = read_plan_prediction(options.run / "plan.json");
  const ExportSummary written = export_chrome(traces, plan, options.to);
  print_notices(traces.notices);
  if (written.not_finite > 0) {
    fmt::print(stderr, "note: {} values are not finite and left out, JSON cannot hold them\n", written.not_finite);
  }
  fmt::print(stderr, "{}: {} spans, {} instants, {} values of {} ranks; open it at https://ui.perfetto.dev\n",
             options.to.string(), written.spans, written.instants, written.scalars, traces.ranks.size());
  return 0;
}

}  // namespace

void define_trace(CLI::App& app, Invocation& invocation) {
  CLI::App* trace = app.add_subcommand("trace", "Explain where a run's time went, or export its timeline");
  trace->require_subcommand(1);

  CLI::App* report = trace->add_subcommand("report", "A step's parts, measured beside planned, explained");
  auto report_options = std::make_shared<ReportOptions>();
  report->add_option("run", report_options->run, "Folder of the run")->required()->type_name("RUN");
  report->add_flag("--json", report_options->json, "One JSON document on standard output");
  report->add_option("--step", report_options->step, "Only this step, instead of the mean over all")->type_name("N");
  report->callback([report_options, &invocation] {
    invocation.run = [report_options] { return report_trace(*report_options); };
  });

  CLI::App* exporting = trace->add_subcommand("export", "All ranks on one time axis, for Perfetto");
  auto export_options = std::make_shared<ExportOptions>();
  exporting->add_option("run", export_options->run, "Folder of the run")->required()->type_name("RUN");
  exporting->add_option("--to", export_options->to, "File to write, e.g. chrome.json")->required()->type_name("FILE");
  exporting->callback([export_options, &invocation] {
    invocation.run = [export_options] { return export_trace(*export_options); };
  });
}

}  // namespace paceline
