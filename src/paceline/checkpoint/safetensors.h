#pragma once

#include "paceline/checkpoint/element_type.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace paceline {

/// One tensor of a safetensors header.
struct SafetensorsTensor {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::uint64_t begin = 0;          ///< byte offsets into the data that follows the header
  std::uint64_t end = 0;
};

/// What a header says. Tensors are in the order of their data.
struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;
};

/// Parses and checks a header against the size of the data behind it, by the rules of the reference implementation
/// 0.8.0 (no gap, no overlap, sizes that fit type and shape, no name twice). `path` is for the message.
SafetensorsHeader parse_safetensors_header(std::span<const char> text, std::uint64_t data_bytes,
                                           const std::filesystem::path& path);

/// A safetensors file mapped for reading. Opening checks the whole header; one clear error names file and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  /// Null when the file has no such tensor.
  const SafetensorsTensor* find(const std::string& name) const;
  /// The tensor's values, row-major. Possibly unaligned. Valid as long as this object lives.
  std::span<const std::byte> bytes(const SafetensorsTensor& tensor) const;

 private:
  std::filesystem::path path_;
  std::span<const std::byte> mapping_;
  std::uint64_t data_offset_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t> index_;
};

/// One tensor to write. `content` is called once, when its turn comes, and gives the row-major values; what it returns
/// must stay valid until the next tensor's turn.
struct SafetensorsEntry {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  std::function<std::span<const std::byte>()> content;
};

/// What was written.
struct WrittenSafetensors {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;                             ///< XXH3 (64 bits) of the whole file
  std::map<std::string, std::uint64_t> tensor_checksums;  ///< XXH3 (64 bits) of each tensor's bytes
};

/// Writes a file beside `path`, makes it durable and renames it: `path` appears whole or not at all. The header is
/// aligned to 8 bytes; tensors of wider elements come first, so that each is aligned, and else keep their order.
/// `metadata` gains {"format": "pt"}, which older readers ask for. An outside failure (full disk) is one error that
/// names the file, with nothing left behind.
WrittenSafetensors write_safetensors(const std::filesystem::path& path, std::map<std::string, std::string> metadata,
                                     std::vector<SafetensorsEntry> entries);

}  // namespace paceline
