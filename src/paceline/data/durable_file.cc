#include "paceline/data/durable_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/data/mapped_file.h"

namespace paceline {
namespace {

constexpr std::size_t buffer_bytes = 1 << 20;

}  // namespace

struct DurableFile::Hash {
  XXH3_state_t* state = XXH3_createState();
  Hash() { XXH3_64bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
};

DurableFile::DurableFile(std::filesystem::path path)
    : path_(std::move(path)), partial_(path_.string() + ".partial"), hash_(std::make_unique<Hash>()) {
  file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  buffer_.reserve(buffer_bytes);
}

DurableFile::~DurableFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(partial_.c_str());
}

void DurableFile::write(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  XXH3_64bits_update(hash_->state, data, bytes);
  bytes_ += bytes;
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, buffer_bytes - buffer_.size());
    buffer_.insert(buffer_.end(), begin, begin + part);
    begin += part;
    bytes -= part;
    if (buffer_.size() == buffer_bytes) flush();
  }
}

void DurableFile::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
}

FileDigest DurableFile::commit() {
  PACELINE_CHECK(file_ >= 0);
  flush();
  if (::fsync(file_) != 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    fail("{}: cannot be put in its place: {}", path_.string(), std::strerror(errno));
  }
  ::close(std::exchange(file_, -1));
  return {bytes_, fmt::format("{:016x}", XXH3_64bits_digest(hash_->state))};
}

FileDigest write_durable_file(const std::filesystem::path& path, std::string_view content) {
  DurableFile file(path);
  file.write(content);
  return file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const int file = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) fail("{}: {}", folder.string(), std::strerror(errno));
  ::fsync(file);
  ::close(file);
}

FileDigest digest_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return {file.size(), fmt::format("{:016x}", XXH3_64bits(file.data(), file.size()))};
}

std::string xxh3_128_hex(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace paceline
