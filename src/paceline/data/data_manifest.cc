#include "paceline/data/data_manifest.h"

#include <nlohmann/json.hpp>

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"
#include "paceline/base/replace_file.h"
#include "paceline/data/mapped_file.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json file_json(const std::string& name, const FileDigest& digest) {
  return {{"file", name}, {"bytes", digest.bytes}, {"xxh3", digest.xxh3}};
}

FileDigest read_digest(const Json& json) {
  return {whole_number<std::uint64_t>(json.at("bytes")), json.at("xxh3").get<std::string>()};
}

Json shard_json(const ManifestShard& shard) {
  const ShardSummary& summary = shard.summary;
  return {{"name", shard.name},
          {"bin", file_json(shard.name + ".bin", summary.bin)},
          {"idx", file_json(shard.name + ".idx", summary.idx)},
          {"documents", summary.documents},
          {"tokens", summary.tokens},
          {"text_bytes", shard.text_bytes},
          {"minimum_token", summary.minimum_token},
          {"maximum_token", summary.maximum_token}};
}

ManifestShard read_shard(const Json& json) {
  ManifestShard shard;
  shard.name = json.at("name").get<std::string>();
  shard.summary.bin = read_digest(json.at("bin"));
  shard.summary.idx = read_digest(json.at("idx"));
  shard.summary.documents = whole_number<std::int64_t>(json.at("documents"));
  shard.summary.tokens = whole_number<std::int64_t>(json.at("tokens"));
  shard.text_bytes = whole_number<std::int64_t>(json.at("text_bytes"));
  shard.summary.minimum_token = whole_number<std::int64_t>(json.at("minimum_token"));
  shard.summary.maximum_token = whole_number<std::int64_t>(json.at("maximum_token"));
  return shard;
}

DataManifest parse_manifest(const Json& json) {
  DataManifest manifest;
  json.at("program_version").get_to(manifest.producer.program_version);
  json.at("trace").at("trace_id").get_to(manifest.producer.trace_id);
  json.at("trace").at("span_id").get_to(manifest.producer.span_id);
  json.at("data_version").get_to(manifest.data_version);
  json.at("settings_hash").get_to(manifest.settings_hash);
  json.at("inputs_hash").get_to(manifest.inputs_hash);
  const Json& tokenizer = json.at("tokenizer");
  tokenizer.at("file").get_to(manifest.tokenizer_file);
  manifest.tokenizer = read_digest(tokenizer);
  manifest.vocabulary_size = whole_number<std::int64_t>(tokenizer.at("vocabulary_size"));
  manifest.end_of_text_id = whole_number<std::int64_t>(tokenizer.at("end_of_text_id"));
  for (const Json& shard : json.at("shards")) manifest.shards.push_back(read_shard(shard));
  const Json& documents = json.at("documents");
  manifest.documents_read = whole_number<std::int64_t>(documents.at("read"));
  manifest.documents_kept = whole_number<std::int64_t>(documents.at("kept"));
  for (const auto& [reason, count] : documents.at("removed").items()) {
    manifest.documents_removed[reason] = whole_number<std::int64_t>(count);
  }
  manifest.replaced_characters = whole_number<std::int64_t>(json.at("replaced_characters"));
  if (const Json& loss = json.at("bigram_held_out_loss"); !loss.is_null()) {
    manifest.bigram_held_out_loss = loss.get<double>();
  }
  return manifest;
}

void verify_file(const fs::path& path, const FileDigest& expected, bool checksum) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) fail("{}: {}", path.string(), error.message());
  if (bytes != expected.bytes) {
    fail("{}: has {} bytes, but the manifest says {}: build the data again", path.string(), bytes, expected.bytes);
  }
  if (checksum && digest_file(path).xxh3 != expected.xxh3) {
    fail("{}: its content differs from what the manifest says (XXH3 {}): build the data again", path.string(),
         expected.xxh3);
  }
}

}  // namespace

const ManifestShard& DataManifest::shard(std::string_view name) const {
  std::string names;
  for (const ManifestShard& shard : shards) {
    if (shard.name == name) return shard;
    names += (names.empty() ? "" : ", ") + shard.name;
  }
  fail("the data has no shard '{}', only: {}", name, names);
}

std::string format_manifest(const DataManifest& manifest) {
  Json shards = Json::array();
  for (const ManifestShard& shard : manifest.shards) shards.push_back(shard_json(shard));
  Json tokenizer = file_json(manifest.tokenizer_file, manifest.tokenizer);
  tokenizer["vocabulary_size"] = manifest.vocabulary_size;
  tokenizer["end_of_text_id"] = manifest.end_of_text_id;
  Json removed = Json::object();
  for (const auto& [reason, count] : manifest.documents_removed) removed[reason] = count;
  const Json json = {
      {"schema_version", DataManifest::current_schema_version},
      {"program_version", manifest.producer.program_version},
      {"trace", {{"trace_id", manifest.producer.trace_id}, {"span_id", manifest.producer.span_id}}},
      {"data_version", manifest.data_version},
      {"settings_hash", manifest.settings_hash},
      {"inputs_hash", manifest.inputs_hash},
      {"tokenizer", tokenizer},
      {"shards", shards},
      {"documents", {{"read", manifest.documents_read}, {"kept", manifest.documents_kept}, {"removed", removed}}},
      {"replaced_characters", manifest.replaced_characters},
      {"bigram_held_out_loss", manifest.bigram_held_out_loss ? Json(*manifest.bigram_held_out_loss) : Json()},
  };
  return json.dump(2) + "\n";
}

void write_manifest(const DataManifest& manifest, const fs::path& folder) {
  replace_file((folder / "manifest.json").string(), format_manifest(manifest));
}

DataManifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  const MappedFile file(path);
  try {
    const auto* text = reinterpret_cast<const char*>(file.data());
    if (json_nests_too_deep({text, file.size()})) {
      fail("{}: is not a data manifest: it nests more than {} brackets", path.string(), deepest_json);
    }
    const Json json = Json::parse(text, text + file.size());
    const int version = whole_number<int>(json.at("schema_version"));
    if (version != DataManifest::current_schema_version) {
      fail("{}: schema version {} is not known to this program, only {}", path.string(), version,
           DataManifest::current_schema_version);
    }
    return parse_manifest(json);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: is not a data manifest: {}", path.string(), error.what());
  }
}

std::string data_version(const FileDigest& tokenizer, const std::vector<ManifestShard>& shards) {
  std::string content = tokenizer.xxh3;
  for (const ManifestShard& shard : shards) {
    content += fmt::format(" {} {} {}", shard.name, shard.summary.bin.xxh3, shard.summary.idx.xxh3);
  }
  return xxh3_128_hex(content);
}

void verify_data_files(const DataManifest& manifest, const fs::path& folder, bool checksums) {
  verify_file(folder / manifest.tokenizer_file, manifest.tokenizer, checksums);
  for (const ManifestShard& shard : manifest.shards) {
    verify_file(folder / (shard.name + ".bin"), shard.summary.bin, checksums);
    verify_file(folder / (shard.name + ".idx"), shard.summary.idx, checksums);
  }
}

void require_vocabulary_fits(const DataManifest& manifest, std::int64_t table_rows) {
  if (table_rows < manifest.vocabulary_size) {
    refuse("the tokenizer of the data has {} entries, but the model's vocabulary is {}: set it to at least {}",
           manifest.vocabulary_size, table_rows, manifest.vocabulary_size);
  }
}

}  // namespace paceline
