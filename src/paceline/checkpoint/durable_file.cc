#include "paceline/checkpoint/durable_file.h"

#include "paceline/base/error.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

namespace paceline {

DurableFile::DurableFile(const std::filesystem::path& path) : path_(path) {
  beside_ = path.parent_path() / fmt::format(".{}.tmp-{}", path.filename().string(), getpid());
  descriptor_ = open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("cannot create {}: {}", path_.string(), std::strerror(errno));
}

DurableFile::~DurableFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(beside_.c_str());
}

void DurableFile::fail_writing(const char* what) {
  const int error = errno;
  fail("cannot {} {}: {} (after {} bytes; nothing is left behind)", what, path_.string(), std::strerror(error),
       written_);
}

void DurableFile::write(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    // Linux writes at most 2 GiB at once.
    const ssize_t count = ::write(descriptor_, from, std::min(bytes, std::size_t{1} << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_writing("write");
    from += count;
    bytes -= static_cast<std::size_t>(count);
    written_ += static_cast<std::uint64_t>(count);
  }
}

void DurableFile::commit() {
  if (fsync(descriptor_) != 0) fail_writing("make durable");
  if (std::rename(beside_.c_str(), path_.c_str()) != 0) fail_writing("rename into place");
  close(descriptor_);
  descriptor_ = -1;
  sync_folder(path_.parent_path());
}

void write_durably(const std::filesystem::path& path, std::string_view content) {
  DurableFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  const int descriptor = open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot open the folder {}: {}", name, std::strerror(errno));
  const int result = fsync(descriptor);
  const int error = errno;
  close(descriptor);
  // Some network file systems have no fsync of folders.
  if (result != 0 && error != EINVAL) fail("cannot make the folder {} durable: {}", name, std::strerror(error));
}

std::string read_text(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail("{} is a folder where a file was expected", path.string());
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail("cannot read {}: {}", path.string(), std::strerror(errno));
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::uint64_t file_checksum(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail("cannot read {}: {}", path.string(), std::strerror(errno));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  std::vector<char> buffer(std::size_t{1} << 20);
  ssize_t count = 0;
  while ((count = read(descriptor, buffer.data(), buffer.size())) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    XXH3_64bits_update(hash.get(), buffer.data(), static_cast<std::size_t>(count));
  }
  const int error = errno;
  close(descriptor);
  if (count < 0) fail("cannot read {}: {}", path.string(), std::strerror(error));
  return XXH3_64bits_digest(hash.get());
}

}  // namespace paceline
