#include "paceline/data/hashed_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/data/mapped_file.h"

namespace paceline {
namespace {

constexpr std::size_t buffer_bytes = 1 << 20;

}  // namespace

struct HashedFile::Hash {
  XXH3_state_t* state = XXH3_createState();
  Hash() { XXH3_64bits_reset(state); }
  ~Hash() { XXH3_freeState(state); }
};

HashedFile::HashedFile(std::filesystem::path path)
    : path_(std::move(path)), partial_(path_.string() + ".partial"), hash_(std::make_unique<Hash>()) {
  file_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  buffer_.reserve(buffer_bytes);
}

HashedFile::~HashedFile() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(partial_.c_str());
}

void HashedFile::write(const void* data, std::size_t bytes) {
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

void HashedFile::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
}

FileDigest HashedFile::commit() {
  PACELINE_CHECK(file_ >= 0);
  flush();
  if (::fsync(file_) != 0) fail("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    fail("{}: cannot be put in its place: {}", path_.string(), std::strerror(errno));
  }
  ::close(std::exchange(file_, -1));
  return {bytes_, fmt::format("{:016x}", XXH3_64bits_digest(hash_->state))};
}

FileDigest write_hashed_file(const std::filesystem::path& path, std::string_view content) {
  HashedFile file(path);
  file.write(content);
  return file.commit();
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
