#include "paceline/data/output_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "paceline/base/error.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

fs::path without_trailing_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

void sync_path(const fs::path& path) {
  const int file = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) fail("{}: {}", path.string(), std::strerror(errno));
  ::fsync(file);
  ::close(file);
}

/// Opens and locks the folder; -1 if another process holds it.
int lock_folder(const fs::path& path) {
  while (true) {
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
      fail("{}: cannot be made: {}", path.string(), std::strerror(errno));
    const int file = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0) {
      if (errno == ENOENT) continue;
      fail("{}: {}", path.string(), std::strerror(errno));
    }
    if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
      ::close(file);
      return -1;
    }
    struct stat held = {};
    struct stat named = {};
    const bool same = ::fstat(file, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino;
    if (same) return file;
    ::close(file);  // the other build published it between our open and lock
  }
}

}  // namespace

OutputFolder::OutputFolder(fs::path target)
    : target_(without_trailing_slash(target)), building_(target_.string() + ".building") {
  std::error_code error;
  // A checkpoint has a manifest.json too, and so have other programs' folders: the ledger is the data's own.
  const bool is_data = fs::exists(target_ / "manifest.json") && fs::exists(target_ / "ledger.json");
  if (fs::exists(target_) && (!fs::is_directory(target_) || (!fs::is_empty(target_, error) && !is_data))) {
    refuse("{}: exists and holds no manifest.json with ledger.json, so it is not replaced: name another output folder",
           target_.string());
  }
  if (target_.has_parent_path()) {
    fs::create_directories(target_.parent_path(), error);
    if (error) fail("{}: cannot be made: {}", target_.parent_path().string(), error.message());
  }
  lock_ = lock_folder(building_);
  if (lock_ < 0) fail("{}: another build is writing it", building_.string());
  for (const fs::directory_entry& entry : fs::directory_iterator(building_)) fs::remove_all(entry.path());
}

OutputFolder::~OutputFolder() {
  std::error_code error;
  if (!published_) fs::remove_all(building_, error);
  ::close(lock_);
}

void OutputFolder::publish() {
  sync_path(building_);
  if (fs::exists(target_)) {
    if (::renameat2(AT_FDCWD, building_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
      fail("{}: cannot be put in its place: {}", target_.string(), std::strerror(errno));
    }
    std::error_code error;
    fs::remove_all(building_, error);  // the old data
  } else if (::rename(building_.c_str(), target_.c_str()) != 0) {
    fail("{}: cannot be put in its place: {}", target_.string(), std::strerror(errno));
  }
  published_ = true;
  sync_path(target_.parent_path());
}

}  // namespace paceline
