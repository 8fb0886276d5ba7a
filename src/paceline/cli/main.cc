#include "paceline/base/error.h"
#include "paceline/base/nearest_name.h"
#include "paceline/base/version.h"
#include "paceline/cli/command.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace paceline {
namespace {

constexpr DefineCommand commands[] = {define_data,     define_plan,    define_train, define_eval, define_generate,
                                      define_convert,  define_trace,   define_bench, define_config};

/// One line for a wrong command line, with the help that belongs to it.
std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  std::string command = app->get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  return std::string("paceline: ") + error.what() + "; see `" + command + " --help`\n";
}

int run(int argc, char** argv) {
  CLI::App app("Plans, runs and explains the distributed training of large models.", "paceline");
  app.set_version_flag("--version", std::string("paceline ") + program_version);
  app.require_subcommand(1);
  app.failure_message(usage_error);
  Invocation invocation;
  for (const DefineCommand define : commands) define(app, invocation);
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  if (argc > 1 && argv[1][0] != '-' && std::find(known.begin(), known.end(), argv[1]) == known.end()) {
    refuse("unknown command '{}'; the nearest is '{}'; see `paceline --help`", argv[1], nearest_name(argv[1], known));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::usage);
  }
  return invocation.run();
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  try {
    return paceline::run(argc, argv);
  } catch (const paceline::Error& error) {
    std::fprintf(stderr, "paceline: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "paceline: %s\n", error.what());
    return static_cast<int>(paceline::ExitCode::failure);
  }
}
