#include "fuzz_target.h"

#include "paceline/data/indexed_shard.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace paceline {
namespace {

std::string file_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

/// The last bytes, as many as the first two say, are the .bin; the rest is the .idx.
void parse_foreign_bytes(std::string_view bytes) {
  std::uint16_t bin_bytes = 0;
  if (bytes.size() < sizeof bin_bytes) return;
  std::memcpy(&bin_bytes, bytes.data(), sizeof bin_bytes);
  bytes.remove_prefix(sizeof bin_bytes);
  const std::size_t split = bytes.size() - std::min<std::size_t>(bin_bytes, bytes.size());
  const std::filesystem::path idx = input_file("shard.idx", bytes.substr(0, split));
  input_file("shard.bin", bytes.substr(split));

  const IndexedShard shard((idx.parent_path() / "shard").string());
  std::int64_t tokens = 0;
  for (std::int64_t document = 0; document < shard.documents(); ++document) {
    tokens += static_cast<std::int64_t>(shard.read_document(document).size());
  }
  require(tokens == shard.tokens(), "the documents do not hold the shard's tokens");
  for (std::int64_t token = 0; token < shard.tokens(); ++token) {
    const std::int64_t document = shard.document_of(token);
    require(shard.document_begin(document) <= token && token < shard.document_begin(document + 1),
            "a token lies outside its document");
  }
  verify_token_range(shard, 8192);
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const std::int64_t vocabulary : {100, 100'000}) {
    const std::string prefix = (input_file("seed.idx", "").parent_path() / "seed").string();
    ShardWriter writer(prefix, vocabulary);
    writer.add_document(std::vector<std::int32_t>{1, 2, 3});
    writer.add_document({});
    writer.add_document(std::vector<std::int32_t>{4});
    writer.finish();
    const std::string bin = file_bytes(prefix + ".bin");
    const auto bin_bytes = static_cast<std::uint16_t>(bin.size());
    all.push_back(std::string(reinterpret_cast<const char*>(&bin_bytes), sizeof bin_bytes) +
                  file_bytes(prefix + ".idx") + bin);
  }
  return all;
}

}  // namespace paceline
