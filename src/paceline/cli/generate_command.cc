#include "paceline/cli/at_least.h"
#include "paceline/cli/command.h"
#include "paceline/cli/engine.h"
#include "paceline/engine/requests.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace paceline {

void define_generate(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a model");
  const auto request = std::make_shared<GenerateRequest>();
  command->add_option("MODEL", request->model, "A run's folder (its latest checkpoint), a checkpoint's or a Hugging Face folder")
      ->required();
  command->add_option("--prompt", request->prompt, "The text's beginning; without it, the beginning of a document")->type_name("TEXT");
  command->add_option("--max-new-tokens", request->max_new_tokens, "Stop after this many, if no end of text comes before")
      ->check(at_least(0))->capture_default_str()->type_name("N");
  command->add_option("--temperature", request->temperature, "Divides the logits; 0: always the most likely token")
      ->capture_default_str()->type_name("T");
  command->add_option("--top-k", request->top_k, "Draw from the K most likely tokens; 0: from all")
      ->capture_default_str()->type_name("K");
  command->add_option("--top-p", request->top_p, "Draw from the fewest tokens that hold this share of the probability")
      ->capture_default_str()->type_name("P");
  command->add_option("--seed", request->seed, "The same seed gives the same text")->capture_default_str()->type_name("N");
  command->add_flag("--json", request->json, "Print one JSON document on standard output, when the text is complete");
  command->callback([&invocation, request] {
    invocation.run = [request] { return load_engine().generate(*request); };
  });
}

}  // namespace paceline
