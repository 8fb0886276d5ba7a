#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace paceline {

/// A file that appears whole or not at all: written beside its place, made durable (fsync), then renamed.
class DurableFile {
 public:
  explicit DurableFile(const std::filesystem::path& path);
  ~DurableFile();  ///< removes what was written unless `commit` was called
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail_writing(const char* what);

  std::filesystem::path path_;
  std::filesystem::path beside_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
};

/// Writes a small file whole or not at all.
void write_durably(const std::filesystem::path& path, std::string_view content);

/// Makes the entries of a folder durable (renames, new files).
void sync_folder(const std::filesystem::path& folder);

/// A small file's whole content; an error names the file.
std::string read_text(const std::filesystem::path& path);

/// XXH3 (64 bits) of a file's whole content.
std::uint64_t file_checksum(const std::filesystem::path& path);

}  // namespace paceline
