#include "paceline/data/data_build.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/base/philox.h"
#include "paceline/base/replace_file.h"
#include "paceline/data/bpe_trainer.h"
#include "paceline/data/byte_bpe.h"
#include "paceline/data/document_reader.h"
#include "paceline/data/exact_dedup.h"
#include "paceline/data/kneser_ney.h"
#include "paceline/data/mapped_file.h"
#include "paceline/data/output_folder.h"
#include "paceline/data/parallel_for.h"
#include "paceline/data/tokenizer_json.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view no_text = "no text";
constexpr std::string_view exact_duplicate = "exact duplicate";

/// One input file on its way through the stages.
struct Document {
  fs::path path;
  std::string text;
  std::size_t replaced_characters = 0;
  ContentHash hash{};
  std::string removed;  ///< why, empty while it is kept
  const Document* same_as = nullptr;
  bool held_out = false;
  std::vector<std::int32_t> tokens;
};

std::string_view text_of(const MappedFile& file) { return {reinterpret_cast<const char*>(file.data()), file.size()}; }

class DataBuilder {
 public:
  DataBuilder(const DataSettings& settings, const DataProducer& producer, const DataProgress& progress)
      : settings_(settings),
        producer_(producer),
        progress_(progress),
        workers_(settings.workers > 0 ? settings.workers : default_workers()) {}

  DataBuildResult build() {
    list_inputs();
    hash_inputs();
    if (auto manifest = up_to_date_manifest()) return {std::move(*manifest), true};
    OutputFolder output(settings_.output_folder);
    extract();
    remove_duplicates();
    split();
    const ByteBpe tokenizer = train_tokenizer();
    encode(tokenizer);
    write(tokenizer, output.building());
    output.publish();
    return {std::move(manifest_), false};
  }

 private:
  template <typename Work>
  void for_all(std::string_view stage, std::string_view unit, std::size_t count, Work&& work) {
    std::mutex mutex;
    std::int64_t done = 0;
    parallel_for(count, workers_, [&](int worker, std::size_t index) {
      work(worker, index);
      const std::lock_guard lock(mutex);
      progress_(stage, ++done, static_cast<std::int64_t>(count), unit);
    });
  }

  void list_inputs() {
    for (fs::path& path : list_documents(settings_.input_paths, settings_.extensions)) {
      documents_.push_back({.path = std::move(path)});
    }
    if (documents_.empty()) {
      std::string paths;
      for (const std::string& path : settings_.input_paths) paths += (paths.empty() ? "" : ", ") + path;
      fail("no file below {} has one of the extensions of input.extensions", paths);
    }
  }

  void hash_inputs() {
    std::vector<std::string> hashes(documents_.size());
    parallel_for(documents_.size(), workers_, [&](int, std::size_t i) {
      const MappedFile file(documents_[i].path);
      hashes[i] = xxh3_128_hex(text_of(file));
    });
    std::string inputs;
    for (std::size_t i = 0; i < documents_.size(); ++i) inputs += documents_[i].path.string() + "\n" + hashes[i] + "\n";
    manifest_.inputs_hash = xxh3_128_hex(inputs);
    manifest_.settings_hash =
        xxh3_128_hex(fmt::format("{} vocabulary {} held out {:.17g} seed {}", producer_.program_version,
                                 settings_.vocabulary_size, settings_.held_out_fraction, settings_.seed));
    manifest_.producer = producer_;
  }

  std::optional<DataManifest> up_to_date_manifest() const {
    if (!fs::exists(fs::path(settings_.output_folder) / "manifest.json")) return std::nullopt;
    try {
      DataManifest old = read_manifest(settings_.output_folder);
      if (old.settings_hash != manifest_.settings_hash || old.inputs_hash != manifest_.inputs_hash) return std::nullopt;
      verify_data_files(old, settings_.output_folder, true);
      return old;
    } catch (const Error&) {  // an older schema or a damaged file: build again
      return std::nullopt;
    }
  }

  void extract() {
    for_all("extracting text", "files", documents_.size(), [&](int, std::size_t i) {
      Document& document = documents_[i];
      const MappedFile file(document.path);
      ExtractedDocument extracted = extract_document(document.path, text_of(file));
      document.text = std::move(extracted.text);
      document.replaced_characters = extracted.replaced_characters;
      document.removed = std::move(extracted.refusal);
      document.hash = content_hash(document.text);
    });
  }

  void remove_duplicates() {
    const ContentHash empty = content_hash("");
    std::unordered_map<std::string, const Document*> by_hash;
    ExactDedup dedup;
    for (Document& document : documents_) {
      if (!document.removed.empty()) continue;
      const std::string key = fmt::format("{:x} {:x}", document.hash[0], document.hash[1]);
      if (document.hash == empty) {
        document.removed = no_text;
      } else if (dedup.is_first(document.hash)) {
        by_hash.emplace(key, &document);
      } else {
        document.removed = exact_duplicate;
        document.same_as = by_hash.at(key);
      }
    }
    manifest_.documents_read = static_cast<std::int64_t>(documents_.size());
    for (const Document& document : documents_) {
      manifest_.replaced_characters += static_cast<std::int64_t>(document.replaced_characters);
      if (document.removed.empty()) {
        ++manifest_.documents_kept;
      } else {
        ++manifest_.documents_removed[document.removed];
      }
    }
  }

  void split() {
    const std::uint64_t key = stream_key(settings_.seed, "held-out split");
    for (Document& document : documents_) {
      if (!document.removed.empty()) continue;
      document.held_out = random_uniform(key, document.hash[0]) < settings_.held_out_fraction;
      (document.held_out ? held_out_ : training_).push_back(&document);
    }
    if (training_.empty() || held_out_.empty()) {
      refuse(
          "split.held_out_fraction = {} of {} documents leaves {} for training and {} held out: change it, or add text",
          settings_.held_out_fraction, manifest_.documents_kept, training_.size(), held_out_.size());
    }
  }

  ByteBpe train_tokenizer() {
    std::vector<WordCounts> counts(static_cast<std::size_t>(workers_));
    for_all("counting words", "documents", training_.size(),
            [&](int worker, std::size_t i) { counts[static_cast<std::size_t>(worker)].add(training_[i]->text); });
    for (std::size_t worker = 1; worker < counts.size(); ++worker) counts[0].merge(counts[worker]);
    progress_("training the tokenizer", 0, settings_.vocabulary_size, "tokens");
    ByteBpe tokenizer(train_byte_bpe(counts[0], settings_.vocabulary_size));
    progress_("training the tokenizer", settings_.vocabulary_size, settings_.vocabulary_size, "tokens");
    return tokenizer;
  }

  void encode(const ByteBpe& tokenizer) {
    std::vector<Document*> kept = training_;
    kept.insert(kept.end(), held_out_.begin(), held_out_.end());
    std::vector<BpeEncoder> encoders(static_cast<std::size_t>(workers_), BpeEncoder(tokenizer));
    const std::int32_t end_of_text = tokenizer.end_of_text_id();
    for_all("encoding", "documents", kept.size(), [&](int worker, std::size_t i) {
      encoders[static_cast<std::size_t>(worker)].encode(kept[i]->text, kept[i]->tokens);
      kept[i]->tokens.push_back(end_of_text);
    });
    manifest_.vocabulary_size = tokenizer.vocabulary_size();
    manifest_.end_of_text_id = end_of_text;
  }

  /// Writes a shard and returns its packed stream.
  std::vector<std::int32_t> write_shard(const std::string& name, const std::vector<Document*>& documents,
                                        const fs::path& folder) {
    ManifestShard shard{.name = name};
    ShardWriter writer((folder / name).string(), manifest_.vocabulary_size);
    std::vector<std::int32_t> stream;
    for (const Document* document : documents) {
      writer.add_document(document->tokens);
      stream.insert(stream.end(), document->tokens.begin(), document->tokens.end());
      shard.text_bytes += static_cast<std::int64_t>(document->text.size());
    }
    shard.summary = writer.finish();
    manifest_.shards.push_back(std::move(shard));
    return stream;
  }

  void write(const ByteBpe& tokenizer, const fs::path& folder) {
    progress_("writing", 0, 1, "folders");
    manifest_.tokenizer_file = "tokenizer.json";
    manifest_.tokenizer = write_tokenizer_json(tokenizer, folder / manifest_.tokenizer_file);
    const auto train = write_shard("train", training_, folder);
    const auto held_out = write_shard("held_out", held_out_, folder);
    manifest_.bigram_held_out_loss = KneserNeyBigram(train, manifest_.vocabulary_size).loss(held_out);
    manifest_.data_version = data_version(manifest_.tokenizer, manifest_.shards);
    replace_file((folder / "ledger.json").string(), format_ledger());
    write_manifest(manifest_, folder);
    progress_("writing", 1, 1, "folders");
  }

  std::string format_ledger() const {
    Json reasons = Json::object();
    for (const auto& [reason, count] : manifest_.documents_removed) reasons[reason] = count;
    Json removed = Json::array();
    Json repaired = Json::array();
    Json shards = {{"train", Json::array()}, {"held_out", Json::array()}};
    for (const Document& document : documents_) {
      const std::string path = document.path.string();
      if (document.removed.empty()) {
        shards[document.held_out ? "held_out" : "train"].push_back(path);
      } else {
        Json entry = {{"path", path}, {"reason", document.removed}};
        if (document.same_as != nullptr) entry["same_as"] = document.same_as->path.string();
        removed.push_back(std::move(entry));
      }
      if (document.replaced_characters > 0) {
        repaired.push_back({{"path", path}, {"replaced_characters", document.replaced_characters}});
      }
    }
    const Json ledger = {{"schema_version", 1},
                         {"documents_read", manifest_.documents_read},
                         {"documents_kept", manifest_.documents_kept},
                         {"documents_removed", reasons},
                         {"removed", removed},
                         {"repaired", repaired},
                         {"kept", shards}};
    return ledger.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

  const DataSettings& settings_;
  const DataProducer& producer_;
  const DataProgress& progress_;
  int workers_;
  std::vector<Document> documents_;
  std::vector<Document*> training_;
  std::vector<Document*> held_out_;
  DataManifest manifest_;
};

}  // namespace

DataBuildResult build_data(const DataSettings& settings, const DataProducer& producer, const DataProgress& progress) {
  return DataBuilder(settings, producer, progress).build();
}

}  // namespace paceline
