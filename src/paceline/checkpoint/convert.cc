#include "paceline/checkpoint/convert.h"

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"
#include "paceline/base/version.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/checkpoint.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/huggingface_model.h"
#include "paceline/checkpoint/tensor_storage.h"

#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

namespace paceline {
namespace {

using nlohmann::json;

/// A model to convert, wherever it comes from.
struct Source {
  HuggingFaceConfig config;
  Program program;
  std::function<at::Tensor(const std::string&)> read;
  ElementType type = ElementType::f32;  ///< of the stored weights
  std::filesystem::path tokenizer_folder;
  std::vector<std::string> skipped;
};

bool is_checkpoint_or_run(const std::filesystem::path& from) {
  return std::filesystem::exists(from / manifest_file_name) || std::filesystem::exists(from / "checkpoints") ||
         from.filename() == "checkpoints";
}

/// The ids that mark text's begin and end, as a tokenizer.json's special tokens name them; and a warning where the
/// tokenizer has more entries than the embedding has rows.
void read_tokenizer(const std::filesystem::path& folder, HuggingFaceConfig& config) {
  const std::filesystem::path path = folder / "tokenizer.json";
  const json tokenizer = parse_json(read_text(path));
  if (!tokenizer.is_object()) fail("{} is no valid JSON object", path.string());
  std::int64_t entries = 0;
  const auto count = [&](const json& id) {
    if (id.is_number_integer()) entries = std::max(entries, std::int64_t{whole_number<std::int32_t>(id)} + 1);
  };
  const json::json_pointer vocabulary("/model/vocab");
  if (tokenizer.contains(vocabulary) && tokenizer[vocabulary].is_object()) {
    for (const auto& [token, id] : tokenizer[vocabulary].items()) count(id);
  }
  if (tokenizer.contains("added_tokens") && tokenizer["added_tokens"].is_array()) {
    for (const json& token : tokenizer["added_tokens"]) {
      if (!token.is_object() || !token.contains("id") || !token["id"].is_number_integer()) continue;
      count(token["id"]);
      const json content = token.value("content", json());
      const std::int64_t id = token["id"];
      for (const char* end : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
        if (content == end && config.eos_token_ids.empty()) config.eos_token_ids = {id};
      }
      for (const char* begin : {"<|begin_of_text|>", "<s>"}) {
        if (content == begin && !config.bos_token_id) config.bos_token_id = id;
      }
    }
  }
  if (entries > config.model.vocab_size) {
    config.warnings.push_back(
        fmt::format("{} has {} entries, the model's embedding only {} rows: such tokens cannot be used", path.string(),
                    entries, config.model.vocab_size));
  }
}

Source open_checkpoint(const std::filesystem::path& from) {
  const auto checkpoint = std::make_shared<Checkpoint>(find_checkpoint(from));
  const Manifest& manifest = checkpoint->manifest();
  const std::string state = manifest.has_state("master") ? "master" : "weights";
  Source source{.config = {.model = manifest.model}, .program = build_program(manifest.model)};
  source.read = [checkpoint, state](const std::string& name) { return checkpoint->read_tensor(name, state); };
  for (const GlobalTensor& tensor : global_tensors(source.program.parameters)) {
    const auto saved = manifest.tensors.find(tensor.name);
    if (saved == manifest.tensors.end())
      fail("checkpoint {} has no tensor '{}'", checkpoint->folder().string(), tensor.name);
    if (saved->second.shape != tensor.shape) {
      fail("checkpoint {}: tensor '{}' has another shape than its model's configuration says",
           checkpoint->folder().string(), tensor.name);
    }
    source.type = saved->second.states.at(state).type;
  }
  const std::filesystem::path run = std::filesystem::absolute(checkpoint->folder()).parent_path().parent_path();
  if (std::filesystem::exists(run / "tokenizer.json")) {
    source.tokenizer_folder = run;
    read_tokenizer(run, source.config);
  }
  return source;
}

Source open_huggingface(const std::filesystem::path& from) {
  const auto model = std::make_shared<HuggingFaceModel>(from);
  Source source{.config = model->config(), .program = build_program(model->config().model)};
  model->match(global_tensors(source.program.parameters));
  source.type = model->common_type();
  source.skipped = model->skipped();
  source.read = [model](const std::string& name) { return model->read_tensor(name); };
  if (std::filesystem::exists(from / "tokenizer.json")) {
    source.tokenizer_folder = from;
    read_tokenizer(from, source.config);
  }
  return source;
}

Source open_source(const std::filesystem::path& from) {
  if (!std::filesystem::is_directory(from)) fail("{} is no folder", from.string());
  if (is_checkpoint_or_run(from)) return open_checkpoint(from);
  if (std::filesystem::exists(from / "config.json") || std::filesystem::exists(from / "params.json"))
    return open_huggingface(from);
  fail("{} is neither a run (checkpoints/), nor a checkpoint ({}), nor a Hugging Face model (config.json)",
       from.string(), manifest_file_name);
}

ElementType target_type(const ConvertRequest& request, ElementType stored) {
  if (request.dtype.empty()) {
    const bool kept = stored == ElementType::f64 || (stored == ElementType::bf16 && !request.to_checkpoint);
    return kept ? stored : ElementType::f32;
  }
  for (const auto& [name, type] : {std::pair("fp32", ElementType::f32), std::pair("bf16", ElementType::bf16),
                                   std::pair("fp64", ElementType::f64)}) {
    if (request.dtype != name) continue;
    if (type == ElementType::bf16 && request.to_checkpoint)
      refuse("a checkpoint keeps its weights as fp32 or fp64, not bf16");
    return type;
  }
  refuse("dtype '{}' is not known: fp32, bf16 and fp64 are", request.dtype);
}

void write_checkpoint(const std::filesystem::path& run, const Source& source, ElementType type) {
  std::vector<StoredParameter> parameters;
  for (const Parameter& parameter : source.program.parameters) {
    const at::Tensor local = at::zeros(parameter.shape, at::TensorOptions(scalar_type_of(type, "the checkpoint")));
    for (const Block& block : parameter.blocks) scatter(block, source.read(block.tensor), local);
    parameters.push_back({&parameter, {{"weights", local}}});
  }
  save_checkpoint({.run_folder = run,
                   .step = 0,
                   .run_id = "converted",
                   .program_version = program_version,
                   .model = source.config.model,
                   .collectives = single_rank_collectives()},
                  parameters);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    if (source.tokenizer_folder.empty() || !std::filesystem::exists(source.tokenizer_folder / name)) continue;
    write_durably(run / name, read_text(source.tokenizer_folder / name));
  }
}

void report(const ConvertRequest& request, const Source& source, ElementType type) {
  const std::int64_t parameters = parameter_count(source.program);
  const std::size_t tensors = global_tensors(source.program.parameters).size();
  const std::string dtype = type == ElementType::bf16 ? "bf16" : type == ElementType::f64 ? "fp64" : "fp32";
  for (const std::string& warning : source.config.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (request.json) {
    const json document = {{"from", request.from},
                           {"to", request.to},
                           {"format", request.to_checkpoint ? "checkpoint" : "huggingface"},
                           {"model_type", family_name(source.config.model.family)},
                           {"tensors", tensors},
                           {"parameters", parameters},
                           {"dtype", dtype},
                           {"skipped", source.skipped},
                           {"warnings", source.config.warnings}};
    fmt::print("{}\n", document.dump(2));
    return;
  }
  for (const std::string& name : source.skipped) fmt::print(stderr, "skipped {}: the model computes it\n", name);
  fmt::print("{}: {} with {} parameters in {} tensors, {}\n", request.to, family_name(source.config.model.family),
             parameters, tensors, dtype);
}

}  // namespace

int run_convert(const ConvertRequest& request) {
  std::filesystem::path to = std::filesystem::path(request.to).lexically_normal();
  if (to.filename().empty()) to = to.parent_path();
  if (std::filesystem::exists(to) && !(std::filesystem::is_directory(to) && std::filesystem::is_empty(to))) {
    fail("{} is there already and is not empty: name a new folder", to.string());
  }
  const Source source = open_source(request.from);
  const ElementType type = target_type(request, source.type);

  // Written beside and renamed, so that the folder appears whole or not at all.
  const std::filesystem::path beside = fmt::format("{}.tmp-{}", to.string(), getpid());
  try {
    if (request.to_checkpoint) {
      write_checkpoint(beside, source, type);
    } else {
      write_huggingface_model(beside, {.config = source.config,
                                       .tensors = global_tensors(source.program.parameters),
                                       .read = source.read,
                                       .type = type,
                                       .max_shard_bytes = request.max_shard_bytes,
                                       .tokenizer_folder = source.tokenizer_folder});
    }
    std::filesystem::rename(beside, to);
    sync_folder(to.parent_path());
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(beside, ignored);
    throw;
  }
  report(request, source, type);
  return 0;
}

}  // namespace paceline
