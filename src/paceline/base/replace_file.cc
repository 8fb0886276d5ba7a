#include "paceline/base/replace_file.h"

#include "paceline/base/error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace paceline {

void replace_file(const std::string& path, std::string_view content) {
  const std::string beside = path + ".partial";
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) fail("{}: cannot be written: {}", path, std::strerror(errno));
  int reason = 0;
  while (reason == 0 && !content.empty()) {
    const ssize_t written = ::write(file, content.data(), content.size());
    if (written < 0 && errno != EINTR) reason = errno;
    if (written > 0) content.remove_prefix(static_cast<std::size_t>(written));
  }
  if (reason == 0 && ::fsync(file) != 0) reason = errno;
  if (::close(file) != 0 && reason == 0) reason = errno;
  if (reason == 0 && ::rename(beside.c_str(), path.c_str()) != 0) reason = errno;
  if (reason != 0) {
    ::unlink(beside.c_str());
    fail("{}: cannot be written: {}", path, std::strerror(reason));
  }
}

}  // namespace paceline
