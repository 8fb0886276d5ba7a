#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace paceline {

/// What the parsed command line asks for. A subcommand's callback sets `run`; main calls it and returns its exit code.
struct Invocation {
  std::function<int()> run;
};

/// One command is one file with one such function, which adds the command to the program's parser.
using DefineCommand = void (*)(CLI::App& app, Invocation& invocation);

void define_config(CLI::App& app, Invocation& invocation);
void define_data(CLI::App& app, Invocation& invocation);
void define_plan(CLI::App& app, Invocation& invocation);
void define_train(CLI::App& app, Invocation& invocation);
void define_eval(CLI::App& app, Invocation& invocation);
void define_generate(CLI::App& app, Invocation& invocation);
void define_convert(CLI::App& app, Invocation& invocation);
void define_trace(CLI::App& app, Invocation& invocation);
void define_bench(CLI::App& app, Invocation& invocation);

}  // namespace paceline
