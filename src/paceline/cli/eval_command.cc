#include "paceline/cli/at_least.h"
#include "paceline/cli/command.h"
#include "paceline/cli/engine.h"
#include "paceline/engine/requests.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace paceline {

void define_eval(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("eval", "Loss, perplexity and bits per byte of a model on held-out data");
  const auto request = std::make_shared<EvaluateRequest>();
  command->add_option("MODEL", request->model, "A run's folder (its latest checkpoint), a checkpoint's or a Hugging Face folder")
      ->required();
  CLI::Option* data = command->add_option("--data", request->data_folder, "Data folder; default: the run's own")->type_name("FOLDER");
  CLI::Option* shard = command->add_option("--shard", request->shard, "Shard of it; default: the held-out one")->type_name("NAME");
  CLI::Option* samples =
      command->add_option("--samples", request->samples, "Only the first N samples; default: all of the shard")
          ->check(at_least(1))->type_name("N");
  CLI::Option* length =
      command->add_option("--sequence-length", request->sequence_length, "Tokens a sample; default: the run's, else the model's longest")
          ->check(at_least(1))->type_name("N");
  command->add_option("--micro-batch-size", request->micro_batch_size, "Samples at a time: more take more memory")
      ->check(at_least(1))->capture_default_str()->type_name("N");
  command->add_option("--precision", request->precision, "fp32 or fp64")->check(CLI::IsMember({"fp32", "fp64"}))->capture_default_str();
  CLI::Option* tokens =
      command->add_option("--tokens", request->tokens, "Instead of data: this one sequence of token ids, e.g. 1,2,3")
          ->delimiter(',')->type_name("IDS");
  for (CLI::Option* option : {data, shard, samples, length}) tokens->excludes(option);
  command->add_option("--dump", request->dump, "Write logits, loss and the gradient of every parameter as safetensors")
      ->needs(tokens)->type_name("FILE");
  command->add_flag("--json", request->json, "Print one JSON document on standard output");
  command->callback([&invocation, request] {
    invocation.run = [request] { return load_engine().evaluate(*request); };
  });
}

}  // namespace paceline
