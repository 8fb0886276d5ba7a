#include "paceline/infer/generate.h"

#include "paceline/base/error.h"
#include "paceline/base/version.h"
#include "paceline/data/tokenizer_json.h"
#include "paceline/data/utf8.h"
#include "paceline/infer/loaded_model.h"
#include "paceline/infer/text_generation.h"
#include "paceline/infer/utf8_stream.h"
#include "paceline/supervision/usable_cores.h"

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;

constexpr int generation_schema_version = 1;

ByteBpe read_model_tokenizer(const LoadedModel& model) {
  if (model.tokenizer().empty()) {
    std::string reason;
    for (const std::string& warning : model.warnings()) reason += "; " + warning;
    fail("{}: no tokenizer.json is beside the weights or in the data of the run, so the prompt cannot be read{}",
         model.folder().string(), reason);
  }
  ByteBpe tokenizer = read_tokenizer_json(model.tokenizer());
  if (tokenizer.vocabulary_size() > model.config().vocab_size) {
    refuse("{} has {} entries, but the model's vocabulary is {}: it is not this model's tokenizer", model.tokenizer().string(),
           tokenizer.vocabulary_size(), model.config().vocab_size);
  }
  return tokenizer;
}

std::vector<std::int64_t> prompt_tokens(const ByteBpe& tokenizer, const std::string& prompt,
                                        const std::vector<std::int64_t>& end_ids) {
  if (!prompt.empty()) {
    const std::vector<std::int32_t> ids = tokenizer.encode_with_added_tokens(prompt);
    if (ids.empty()) refuse("--prompt: the tokenizer makes no token of it");
    return {ids.begin(), ids.end()};
  }
  // The beginning of a text is what follows the end of another.
  if (end_ids.empty()) refuse("--prompt is empty, and the model names no end-of-text token to begin behind: give a prompt");
  return {end_ids.front()};
}

/// The ends that the model's files name, or the tokenizer's own.
std::vector<std::int64_t> end_ids_of(const LoadedModel& model, const ByteBpe& tokenizer) {
  if (!model.end_of_text_ids().empty()) return model.end_of_text_ids();
  for (const AddedToken& token : tokenizer.vocabulary().added) {
    if (token.content == end_of_text_token) return {token.id};
  }
  return {};
}

std::string valid_text(std::string bytes) {
  std::size_t replaced = 0;
  return repair_utf8(std::move(bytes), replaced);
}

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

int run_generate(const GenerateRequest& request) {
  install_accounting_allocator();
  at::set_num_threads(threads_per_rank(usable_cores(), 1).threads);
  LoadedModel model(request.model);
  const ByteBpe tokenizer = read_model_tokenizer(model);
  for (const std::string& warning : model.warnings()) fmt::print(stderr, "warning: {}\n", warning);

  GenerationOptions options{.sampling = {.temperature = request.temperature, .top_k = request.top_k, .top_p = request.top_p,
                                         .seed = request.seed},
                            .max_new_tokens = request.max_new_tokens,
                            .end_ids = end_ids_of(model, tokenizer)};
  for (const std::string& token : tokenizer.vocabulary().tokens) options.allowed.push_back(!token.empty());
  const std::vector<std::int64_t> prompt = prompt_tokens(tokenizer, request.prompt, options.end_ids);

  Utf8Stream stream;
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    if (!request.json) show(piece);
  };
  if (!request.json) show(request.prompt);
  const Generation generation = generate_tokens(model, prompt, options, [&](std::int64_t token) {
    const auto id = static_cast<std::int32_t>(token);
    add(stream.add(tokenizer.decode({&id, 1})));
  });
  add(stream.finish());
  if (!request.json) show("\n");

  const std::int64_t window = model.config().max_position_embeddings;
  if (generation.window_slides > 0) {
    fmt::print(stderr, "note: the model reads {} tokens at most; the text went on from the later half of them ({} time{})\n", window,
               generation.window_slides, generation.window_slides == 1 ? "" : "s");
  }
  if (!request.json) return 0;
  const auto decoded = static_cast<double>(generation.tokens.size()) - 1;
  const Json document = {
      {"schema_version", generation_schema_version},
      {"program_version", program_version},
      {"model", model.folder().string()},
      {"step", model.step() ? Json(*model.step()) : Json()},
      {"prompt", valid_text(request.prompt)},
      {"text", text},
      {"prompt_tokens", prompt},
      {"tokens", generation.tokens},
      {"stop", generation.stop == StopReason::end_of_text ? "end_of_text" : "max_new_tokens"},
      {"seed", request.seed},
      {"temperature", request.temperature},
      {"top_k", request.top_k},
      {"top_p", request.top_p},
      {"context_window", window},
      {"window_slides", generation.window_slides},
      {"prefill_s", generation.prefill_s},
      {"decode_s", generation.decode_s},
      {"tokens_per_s", decoded > 0 && generation.decode_s > 0 ? Json(decoded / generation.decode_s) : Json()},
  };
  fmt::print("{}\n", document.dump(2));
  return 0;
}

}  // namespace paceline
