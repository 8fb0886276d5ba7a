#include "paceline/infer/evaluate.h"

#include "paceline/base/error.h"
#include "paceline/base/progress.h"
#include "paceline/base/version.h"
#include "paceline/data/data_manifest.h"
#include "paceline/data/hashed_file.h"
#include "paceline/infer/held_out_loss.h"
#include "paceline/infer/loaded_model.h"
#include "paceline/infer/sequence_gradients.h"
#include "paceline/supervision/usable_cores.h"
#include "paceline/train/shard_source.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numbers>
#include <optional>

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int evaluation_schema_version = 1;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

/// The beginning of every document of this command.
Json document_of(const LoadedModel& model, const EvaluateRequest& request) {
  return {{"schema_version", evaluation_schema_version}, {"program_version", program_version}, {"model", model.folder().string()},
          {"step", model.step() ? Json(*model.step()) : Json()}, {"precision", request.precision}};
}

/// The data that is evaluated, held against the model.
struct EvaluatedData {
  fs::path folder;
  DataManifest manifest;
  std::string shard;
  std::int64_t sequence_length = 0;
};

EvaluatedData evaluated_data(const LoadedModel& model, const EvaluateRequest& request) {
  EvaluatedData data;
  const std::optional<RunSettings>& run = model.settings();
  data.folder = !request.data_folder.empty() ? request.data_folder : run ? run->data.folder : std::string();
  if (data.folder.empty()) refuse("{}: no run that names its data; give --data FOLDER, as `paceline data build` wrote it", request.model);
  data.manifest = read_manifest(data.folder);
  require_vocabulary_fits(data.manifest, model.config().vocab_size);
  data.shard = !request.shard.empty() ? request.shard : run && !run->data.held_out.empty() ? run->data.held_out : "held_out";
  const ManifestShard& shard = data.manifest.shard(data.shard);
  if (shard.summary.maximum_token >= model.config().vocab_size) {
    refuse("{}: holds token {}, beyond the model's vocabulary of {}", (data.folder / (data.shard + ".bin")).string(),
           shard.summary.maximum_token, model.config().vocab_size);
  }
  const std::int64_t longest = model.config().max_position_embeddings;
  data.sequence_length = request.sequence_length > 0 ? request.sequence_length : run ? run->train.sequence_length : longest;
  if (data.sequence_length > longest) {
    refuse("--sequence-length {} is longer than the model's max_position_embeddings of {}", data.sequence_length, longest);
  }
  return data;
}

/// Whether the data were tokenised as the model expects; a loss over other tokens says nothing.
std::optional<std::string> tokenizer_warning(const LoadedModel& model, const EvaluatedData& data) {
  if (model.tokenizer().empty() || digest_file(model.tokenizer()).xxh3 == data.manifest.tokenizer.xxh3) return std::nullopt;
  return fmt::format("{} is another file than {}, which made the data: unless both give the same ids, the loss means nothing",
                     model.tokenizer().string(), (data.folder / data.manifest.tokenizer_file).string());
}

int evaluate_shard(LoadedModel& model, const EvaluateRequest& request) {
  const EvaluatedData data = evaluated_data(model, request);
  std::vector<std::string> warnings = model.warnings();
  if (const auto warning = tokenizer_warning(model, data)) warnings.push_back(*warning);
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);

  const ShardSource source((data.folder / data.shard).string(), data.sequence_length, 0, false, model.config().vocab_size);
  const std::int64_t all = source.loader().samples_per_epoch();
  const std::int64_t samples = request.samples > 0 ? std::min(request.samples, all) : all;
  const auto start = std::chrono::steady_clock::now();
  HeldOutLoss loss;
  {
    Progress progress("evaluate", "samples", samples);
    loss = held_out_loss(model, source, samples, request.micro_batch_size, [&](std::int64_t done, const HeldOutLoss& so_far) {
      progress.update(done, so_far.targets > 0 ? fmt::format("loss {:.4f}", so_far.mean()) : std::string());
    });
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (loss.targets == 0) fail("{}: every target of the evaluated samples is masked", (data.folder / data.shard).string());

  const ManifestShard& shard = data.manifest.shard(data.shard);
  const double share = static_cast<double>(loss.targets) / static_cast<double>(shard.summary.tokens);
  const double text_bytes = share * static_cast<double>(shard.text_bytes);
  const double bits_per_byte = loss.loss_sum / std::numbers::ln2 / text_bytes;
  const double bigram = data.shard == "held_out" ? data.manifest.bigram_held_out_loss.value_or(std::nan("")) : std::nan("");
  if (request.json) {
    Json document = document_of(model, request);
    document.update({{"data", data.folder.string()},
                     {"data_version", data.manifest.data_version},
                     {"shard", data.shard},
                     {"loss", number(loss.mean())},
                     {"perplexity", number(std::exp(loss.mean()))},
                     {"bits_per_byte", number(bits_per_byte)},
                     {"targets", loss.targets},
                     {"shard_tokens", shard.summary.tokens},
                     {"text_bytes", std::llround(text_bytes)},
                     {"samples", samples},
                     {"sequence_length", data.sequence_length},
                     {"bigram_loss", number(bigram)},
                     {"tokens_per_s", static_cast<double>(samples * data.sequence_length) / seconds},
                     {"warnings", warnings}});
    fmt::print("{}\n", document.dump(2));
    return 0;
  }
  fmt::print("model          {}{}\n", model.folder().string(), model.step() ? fmt::format(" (step {})", *model.step()) : "");
  fmt::print("data           {} of {}: {} samples of {} tokens, {} targets, {:.1f} % of the shard\n", data.shard,
             data.folder.string(), samples, data.sequence_length, loss.targets, 100 * share);
  fmt::print("loss           {:.4f} nats a token\n", loss.mean());
  fmt::print("perplexity     {:.3f}\n", std::exp(loss.mean()));
  fmt::print("bits per byte  {:.4f} (over {:.3f} MB of text: the shard's {:.3f} MB by the share of its tokens)\n", bits_per_byte,
             text_bytes / 1e6, static_cast<double>(shard.text_bytes) / 1e6);
  if (std::isfinite(bigram)) {
    fmt::print("bigram         {:.4f} nats a token (Kneser-Ney, the whole shard): the model is {:.4f} {}\n", bigram,
               std::abs(bigram - loss.mean()), loss.mean() < bigram ? "better" : "worse");
  }
  return 0;
}

int evaluate_sequence(LoadedModel& model, const EvaluateRequest& request) {
  for (const std::string& warning : model.warnings()) fmt::print(stderr, "warning: {}\n", warning);
  const SequenceGradients result = sequence_gradients(model, request.tokens);
  if (!request.dump.empty()) write_sequence_gradients(request.dump, result);
  if (request.json) {
    Json document = document_of(model, request);
    document.update({{"tokens", request.tokens},
                     {"loss", number(result.loss)},
                     {"perplexity", number(std::exp(result.loss))},
                     {"targets", request.tokens.size() - 1},
                     {"dump", request.dump.empty() ? Json() : Json(request.dump)}});
    fmt::print("{}\n", document.dump(2));
    return 0;
  }
  fmt::print("loss        {:.6f} nats a token, {} targets\n", result.loss, request.tokens.size() - 1);
  fmt::print("perplexity  {:.4f}\n", std::exp(result.loss));
  if (!request.dump.empty()) fmt::print("{}: logits, loss and {} gradients\n", request.dump, result.gradients.size());
  return 0;
}

}  // namespace

int run_evaluate(const EvaluateRequest& request) {
  install_accounting_allocator();
  at::set_num_threads(threads_per_rank(usable_cores(), 1).threads);
  LoadedModel model(request.model, {.precision = request.precision, .with_gradients = !request.dump.empty()});
  return request.tokens.empty() ? evaluate_shard(model, request) : evaluate_sequence(model, request);
}

}  // namespace paceline
