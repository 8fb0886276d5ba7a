#include "fuzz_target.h"

#include "paceline/data/data_manifest.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  const std::filesystem::path folder = input_file("manifest.json", bytes).parent_path();
  const DataManifest manifest = read_manifest(folder);
  const std::string text = format_manifest(manifest);
  input_file("manifest.json", text);
  require(format_manifest(read_manifest(folder)) == text, "written and read back, it differs");
  data_version(manifest.tokenizer, manifest.shards);
  require_vocabulary_fits(manifest, 8192);
}

std::vector<std::string> seeds() {
  DataManifest manifest;
  manifest.producer = {"0", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"};
  manifest.data_version = "1";
  manifest.tokenizer_file = "tokenizer.json";
  manifest.tokenizer = {10, "0123456789abcdef"};
  manifest.vocabulary_size = 300;
  manifest.documents_removed = {{"empty", 2}};
  manifest.shards.resize(1);
  manifest.shards[0].name = "train";
  manifest.bigram_held_out_loss = 5.5;
  const std::string text = format_manifest(manifest);
  std::vector<std::string> all = {text};
  for (const char* number : {"1e300", "1.5", "-1", "18446744073709551615", "true"}) {
    for (const char* key : {"\"vocabulary_size\": ", "\"bytes\": ", "\"schema_version\": ", "\"empty\": "}) {
      const std::size_t at = text.find(key) + std::string(key).size();
      all.push_back(text.substr(0, at) + number + text.substr(text.find_first_of(",\n", at)));
    }
  }
  for (std::string& nested : deeply_nested_json(R"({"schema_version":1,"program_version":)", "}")) {
    all.push_back(std::move(nested));
  }
  return all;
}

}  // namespace paceline
