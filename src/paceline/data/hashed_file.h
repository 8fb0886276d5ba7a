#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

/// What identifies a file's content.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::string xxh3;  ///< XXH3 64 bit of the content, 16 hexadecimal digits
};

/// A file that is written beside its place (`<path>.partial`) and appears, synced to the disk, when it is complete.
/// Its content is hashed on the way. Without commit() nothing is left. Errors (a full disk) name the file.
class HashedFile {
 public:
  explicit HashedFile(std::filesystem::path path);
  HashedFile(const HashedFile&) = delete;
  HashedFile& operator=(const HashedFile&) = delete;
  ~HashedFile();

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  FileDigest commit();

 private:
  void flush();

  std::filesystem::path path_;
  std::filesystem::path partial_;
  int file_ = -1;
  std::vector<char> buffer_;
  std::uint64_t bytes_ = 0;
  struct Hash;
  std::unique_ptr<Hash> hash_;
};

/// Writes a whole file the same way.
FileDigest write_hashed_file(const std::filesystem::path& path, std::string_view content);

/// Digest of a file that is there.
FileDigest digest_file(const std::filesystem::path& path);

/// XXH3 128 bit of some bytes, 32 hexadecimal digits.
std::string xxh3_128_hex(std::string_view bytes);

}  // namespace paceline
