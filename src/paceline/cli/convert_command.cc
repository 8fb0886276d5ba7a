#include "paceline/cli/command.h"
#include "paceline/cli/engine.h"
#include "paceline/engine/requests.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace paceline {

void define_convert(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("convert", "Convert a model between a run's checkpoint and Hugging Face's format");
  const auto request = std::make_shared<ConvertRequest>();
  const auto format = std::make_shared<std::string>("huggingface");
  command->add_option("FROM", request->from, "A run's folder (its latest checkpoint), a checkpoint's or a Hugging Face folder")
      ->required();
  command->add_option("TO", request->to, "The folder to create")->required();
  command->add_option("--to", *format, "huggingface, or checkpoint: a run folder that training can start from")
      ->check(CLI::IsMember({"huggingface", "checkpoint"}))
      ->capture_default_str();
  command->add_option("--dtype", request->dtype, "fp32, bf16 or fp64; default: as stored")
      ->check(CLI::IsMember({"fp32", "bf16", "fp64"}));
  command->add_option("--max-shard-size", request->max_shard_bytes, "Split model.safetensors above this size, e.g. 500MB or 5GB")
      ->transform(CLI::AsSizeValue(true))
      ->default_str("5GB");
  command->add_flag("--json", request->json, "Print one JSON document on standard output");
  command->callback([&invocation, request, format] {
    request->to_checkpoint = *format == "checkpoint";
    invocation.run = [request] { return load_engine().convert(*request); };
  });
}

}  // namespace paceline
