#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/data/hashed_file.h"
#include "paceline/data/indexed_shard.h"

namespace paceline {

/// Who wrote the data: the version of the program and the span of its trace that consumers link to.
struct DataProducer {
  std::string program_version;
  std::string trace_id;  ///< 32 hexadecimal digits, or empty
  std::string span_id;   ///< 16 hexadecimal digits, or empty
};

/// One shard of a data folder: `<name>.bin` and `<name>.idx`.
struct ManifestShard {
  std::string name;
  ShardSummary summary;
  std::int64_t text_bytes = 0;  ///< UTF-8 bytes of its documents, for bits per byte
};

/// `manifest.json` of a data folder, written last.
struct DataManifest {
  static constexpr int current_schema_version = 1;

  DataProducer producer;
  std::string data_version;   ///< hash of the tokenizer and the shards: what a model was trained on
  std::string settings_hash;  ///< with inputs_hash: what this folder was built from
  std::string inputs_hash;
  std::string tokenizer_file;
  FileDigest tokenizer;
  std::int64_t vocabulary_size = 0;
  std::int64_t end_of_text_id = 0;
  std::vector<ManifestShard> shards;
  std::int64_t documents_read = 0;
  std::int64_t documents_kept = 0;
  std::map<std::string, std::int64_t> documents_removed;  ///< by reason
  std::int64_t replaced_characters = 0;
  std::optional<double> bigram_held_out_loss;  ///< nats a token, see KneserNeyBigram::loss

  /// An Error names the shards that there are.
  const ManifestShard& shard(std::string_view name) const;
};

std::string format_manifest(const DataManifest& manifest);
void write_manifest(const DataManifest& manifest, const std::filesystem::path& folder);

/// Reads `<folder>/manifest.json`; an Error names the file and what is missing or wrong.
DataManifest read_manifest(const std::filesystem::path& folder);

/// The data version of a tokenizer and shards.
std::string data_version(const FileDigest& tokenizer, const std::vector<ManifestShard>& shards);

/// Holds the folder's files against the manifest: their sizes, and with `checksums` their content. An Error names the
/// first file that is missing or differs.
void verify_data_files(const DataManifest& manifest, const std::filesystem::path& folder, bool checksums);

/// Refuses a model whose embedding table has fewer rows than the tokenizer has entries, with both numbers; more rows
/// than entries are usual.
void require_vocabulary_fits(const DataManifest& manifest, std::int64_t table_rows);

}  // namespace paceline
