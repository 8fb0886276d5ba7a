#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "paceline/base/error.h"
#include "paceline/base/progress.h"
#include "paceline/base/version.h"
#include "paceline/cli/command.h"
#include "paceline/data/data_build.h"
#include "paceline/data/document_reader.h"
#include "paceline/data/indexed_shard.h"
#include "paceline/data/mapped_file.h"
#include "paceline/data/tokenizer_json.h"
#include "paceline/data/utf8.h"
#include "paceline/trace/trace_id.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct BuildOptions {
  fs::path settings;
  std::optional<int> workers;
  bool json = false;
};

struct InspectOptions {
  std::string prefix;
  std::optional<std::int64_t> document;
  bool json = false;
};

struct TokenizeOptions {
  fs::path file;
  fs::path tokenizer;
  std::string prefix;
};

/// A progress line for the stage that runs.
class StageProgress {
 public:
  void show(std::string_view stage, std::int64_t done, std::int64_t total, std::string_view unit) {
    if (stage != stage_) {
      stage_ = stage;
      progress_.emplace(stage_, std::string(unit), total);
    }
    progress_->update(done);
  }

 private:
  std::string stage_;
  std::optional<Progress> progress_;
};

void print_summary(const DataBuildResult& result, const std::string& folder) {
  const DataManifest& manifest = result.manifest;
  std::string removed;
  for (const auto& [reason, count] : manifest.documents_removed) removed += fmt::format(", {} {}", count, reason);
  fmt::print("documents   {} read, {} kept{}\n", manifest.documents_read, manifest.documents_kept, removed);
  if (manifest.replaced_characters > 0) {
    fmt::print("repaired    {} ill-formed UTF-8 sequences became U+FFFD (see ledger.json)\n",
               manifest.replaced_characters);
  }
  fmt::print("vocabulary  {} tokens, end of text is {}\n", manifest.vocabulary_size, manifest.end_of_text_id);
  for (const ManifestShard& shard : manifest.shards) {
    fmt::print("{:<11} {} documents, {} tokens, {:.2f} MB of text, {:.2f} bytes a token\n", shard.name,
               shard.summary.documents, shard.summary.tokens, static_cast<double>(shard.text_bytes) / 1e6,
               static_cast<double>(shard.text_bytes) / static_cast<double>(shard.summary.tokens));
  }
  if (manifest.bigram_held_out_loss) {
    const ManifestShard& held_out = manifest.shard("held_out");
    const double targets = static_cast<double>(held_out.summary.tokens - 1);
    fmt::print(
        "bigram      held-out loss {:.4f} nats a token, {:.3f} bits a byte (interpolated Kneser-Ney, the mark to "
        "beat)\n",
        *manifest.bigram_held_out_loss,
        *manifest.bigram_held_out_loss * targets / std::log(2.0) / static_cast<double>(held_out.text_bytes));
  }
  fmt::print("{} {}, data version {}\n", folder, result.up_to_date ? "is up to date" : "is written",
             manifest.data_version);
}

int build(const BuildOptions& options) {
  DataSettings settings = read_data_settings(options.settings);
  if (options.workers) settings.workers = *options.workers;
  const TraceContext trace = trace_context_from_environment(
      process_environment, {}, [](const std::string& notice) { fmt::print(stderr, "note: {}\n", notice); });
  const DataProducer producer = {program_version, trace.trace_id.hex(), trace.span_id.hex()};
  std::optional<StageProgress> progress(std::in_place);
  const DataBuildResult result =
      build_data(settings, producer,
                 [&progress](std::string_view stage, std::int64_t done, std::int64_t total, std::string_view unit) {
                   progress->show(stage, done, total, unit);
                 });
  progress.reset();  // ends its line
  if (options.json) {
    Json json = Json::parse(format_manifest(result.manifest));
    json["folder"] = settings.output_folder;
    json["up_to_date"] = result.up_to_date;
    fmt::print("{}\n", json.dump(2));
  } else {
    print_summary(result, settings.output_folder);
  }
  return 0;
}

std::string valid_text(std::string bytes) {
  std::size_t replaced = 0;
  return repair_utf8(std::move(bytes), replaced);
}

/// The text of tokens, where the folder of the shard holds their tokenizer.
std::optional<std::string> decode_beside(const std::string& prefix, const std::vector<std::int32_t>& tokens) {
  const fs::path tokenizer = fs::path(prefix).parent_path() / "tokenizer.json";
  if (!fs::exists(tokenizer)) return std::nullopt;
  return valid_text(read_tokenizer_json(tokenizer).decode(tokens));
}

int inspect_document(const IndexedShard& shard, const InspectOptions& options) {
  const std::int64_t document = *options.document;
  if (document < 0 || document >= shard.documents()) {
    refuse("{}.idx: has the documents 0 to {}, not {}", shard.prefix(), shard.documents() - 1, document);
  }
  const std::vector<std::int32_t> tokens = shard.read_document(document);
  const std::optional<std::string> text = decode_beside(shard.prefix(), tokens);
  if (options.json) {
    const Json json = {{"document", document},
                       {"first_token", shard.document_begin(document)},
                       {"tokens", tokens},
                       {"text", text ? Json(*text) : Json()}};
    fmt::print("{}\n", json.dump());
  } else if (text) {
    fmt::print("{}\n", *text);
  } else {
    fmt::print("{}\n", fmt::join(tokens, " "));
  }
  return 0;
}

int inspect(const InspectOptions& options) {
  const IndexedShard shard(options.prefix);
  if (options.document) return inspect_document(shard, options);
  std::int64_t longest = 0;
  for (std::int64_t document = 0; document < shard.documents(); ++document) {
    longest = std::max(longest, shard.document_begin(document + 1) - shard.document_begin(document));
  }
  const std::size_t bytes = token_bytes(shard.token_type());
  if (options.json) {
    const Json json = {{"prefix", shard.prefix()},       {"bytes_per_token", bytes}, {"documents", shard.documents()},
                       {"sequences", shard.sequences()}, {"tokens", shard.tokens()}, {"longest_document", longest}};
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print("{}: {} documents, {} tokens of {} bytes, the longest document has {}\n", shard.prefix(),
               shard.documents(), shard.tokens(), bytes, longest);
  }
  return 0;
}

int tokenize(const TokenizeOptions& options) {
  const ByteBpe tokenizer = read_tokenizer_json(options.tokenizer);
  const MappedFile file(options.file);
  const ExtractedDocument document =
      extract_document(options.file, {reinterpret_cast<const char*>(file.data()), file.size()});
  if (!document.refusal.empty()) fail("{}: {}", options.file.string(), document.refusal);
  std::vector<std::int32_t> tokens = tokenizer.encode(document.text);
  tokens.push_back(tokenizer.end_of_text_id());
  for (const char* suffix : {".bin", ".idx"}) {
    if (fs::exists(options.prefix + suffix)) {
      refuse("{}{}: exists and is not overwritten: name another shard with -o, or remove it", options.prefix, suffix);
    }
  }
  ShardWriter writer(options.prefix, tokenizer.vocabulary_size());
  writer.add_document(tokens);
  writer.finish();
  fmt::print(stderr, "{}.bin: {} tokens of {} bytes of text\n", options.prefix, tokens.size(), document.text.size());
  return 0;
}

}  // namespace

void define_data(CLI::App& app, Invocation& invocation) {
  CLI::App* data = app.add_subcommand("data", "Make training data from text, or look at it");
  data->require_subcommand(1);

  CLI::App* building = data->add_subcommand("build", "Files to text, deduplicated, tokenised, in shards");
  auto build_options = std::make_shared<BuildOptions>();
  building->add_option("settings", build_options->settings, "TOML file that says what to read and where to write")
      ->required()
      ->type_name("FILE");
  building->add_option("--workers", build_options->workers, "Threads; the result does not depend on them")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  building->add_flag("--json", build_options->json, "One JSON document on standard output");
  building->callback(
      [build_options, &invocation] { invocation.run = [build_options] { return build(*build_options); }; });

  CLI::App* inspecting = data->add_subcommand("inspect", "What a shard holds, or one of its documents");
  auto inspect_options = std::make_shared<InspectOptions>();
  inspecting->add_option("prefix", inspect_options->prefix, "Path of the shard without .bin and .idx")
      ->required()
      ->type_name("PREFIX");
  inspecting->add_option("--doc", inspect_options->document, "Show this document, counted from 0")->type_name("N");
  inspecting->add_flag("--json", inspect_options->json, "One JSON document on standard output");
  inspecting->callback(
      [inspect_options, &invocation] { invocation.run = [inspect_options] { return inspect(*inspect_options); }; });

  CLI::App* tokenizing = data->add_subcommand("tokenize", "One file as a shard of one document");
  auto tokenize_options = std::make_shared<TokenizeOptions>();
  tokenizing->add_option("file", tokenize_options->file, "Text or HTML file")->required()->type_name("FILE");
  tokenizing->add_option("--tokenizer", tokenize_options->tokenizer, "tokenizer.json")->required()->type_name("FILE");
  tokenizing->add_option("-o,--output", tokenize_options->prefix, "Path of the shard without .bin and .idx")
      ->required()
      ->type_name("PREFIX");
  tokenizing->callback(
      [tokenize_options, &invocation] { invocation.run = [tokenize_options] { return tokenize(*tokenize_options); }; });
}

}  // namespace paceline
