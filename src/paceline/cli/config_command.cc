#include "paceline/cli/command.h"
#include "paceline/config/run_settings.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>

namespace paceline {
namespace {

struct ConfigOptions {
  std::string file;
  std::vector<std::string> overrides;
  bool json = false;
};

int print_config(const ConfigOptions& options) {
  const RunSettings settings = options.file.empty() ? parse_run_settings("", "defaults", options.overrides)
                                                    : read_run_settings(options.file, options.overrides);
  if (options.json) {
    nlohmann::ordered_json keys = nlohmann::ordered_json::array();
    for (const Setting& row : settings_table()) {
      keys.push_back({{"key", row.key}, {"type", row.type}, {"default", row.default_value}, {"value", row.text(settings)},
                      {"unit", row.unit}, {"meaning", row.meaning}});
    }
    fmt::print("{}\n", nlohmann::ordered_json{{"keys", keys}}.dump(2));
    return 0;
  }
  std::string table;
  for (const Setting& row : settings_table()) {
    const std::string head = row.key.substr(0, row.key.find('.'));
    if (head != table) fmt::print("{}[{}]\n", table.empty() ? "" : "\n", head);
    table = head;
    const std::string unit = row.unit.empty() ? "" : ", " + row.unit;
    const std::string value = row.text(settings);
    const std::string changed = value == row.default_value ? "" : fmt::format(" (default {})", row.default_value);
    fmt::print("{:<40} # {}{}: {}{}\n", row.key.substr(head.size() + 1) + " = " + value, row.type, unit, row.meaning, changed);
  }
  return 0;
}

}  // namespace

void define_config(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<ConfigOptions>();
  CLI::App* command = app.add_subcommand("config", "Print every key of a run's file: type, unit, meaning, default, value");
  command->add_option("file", options->file, "A run's TOML file: its values are shown")->type_name("FILE");
  command->add_option("--set", options->overrides, "Set a key over the file, e.g. parallel.tp=2 (repeatable)")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command->add_flag("--json", options->json, "One JSON document");
  command->callback([options, &invocation] { invocation.run = [options] { return print_config(*options); }; });
}

}  // namespace paceline
