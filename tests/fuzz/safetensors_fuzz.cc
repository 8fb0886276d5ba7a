#include "fuzz_target.h"

#include "paceline/checkpoint/safetensors.h"

#include <cstring>
#include <numeric>

namespace paceline {
namespace {

std::string framed(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + std::string(data_bytes, 'x');
}

/// Sizes that the mutations keep from meeting each other: the data that follows has every length from 0 to 255.
void parse_header(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto data_bytes = static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[0]));
  const SafetensorsHeader header = parse_safetensors_header({bytes.data() + 1, bytes.size() - 1}, data_bytes, "header");
  const std::uint64_t covered = std::accumulate(
      header.tensors.begin(), header.tensors.end(), std::uint64_t{0},
      [](std::uint64_t sum, const SafetensorsTensor& tensor) { return sum + tensor.end - tensor.begin; });
  require(covered == data_bytes, "accepted tensors do not cover the data");
}

void read_file(std::string_view bytes) {
  const SafetensorsFile file(input_file("model.safetensors", bytes));
  unsigned sum = 0;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    require(file.find(tensor.name) == &tensor, "a tensor is not found by its name");
    for (const std::byte value : file.bytes(tensor)) sum += static_cast<unsigned>(value);
  }
  volatile unsigned keep = sum;
  static_cast<void>(keep);
}

}  // namespace

/// A whole file; with a first byte of 0xFF, which no file can have there, a header alone.
void parse_foreign_bytes(std::string_view bytes) {
  bytes.starts_with('\xFF') ? parse_header(bytes.substr(1)) : read_file(bytes);
}

std::vector<std::string> seeds() {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"U8","shape":[8],"data_offsets":[24,32],"extra":{"c":[1,null,true,1.5]}}})";
  std::vector<std::string> all = {framed(header, 32), std::string("\xFF\x20") + header, framed("{}", 0),
                                  std::string(8, '\xFE')};
  for (const std::string& text : deeply_nested_json(R"({"a":{"dtype":"F32","shape":)", "}}")) {
    all.push_back(framed(text, 0));
  }
  all.push_back(framed(R"({"a":{"x":)" + std::string(200'000, '['), 0));
  return all;
}

}  // namespace paceline
