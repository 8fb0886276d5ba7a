#include "paceline/supervision/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "paceline/base/error.h"

namespace paceline {

RunLock::RunLock(const std::filesystem::path& run_folder) {
  std::error_code error;
  std::filesystem::create_directories(run_folder, error);
  if (error) fail("cannot create the run folder {}: {}", run_folder.string(), error.message());
  const auto path = run_folder / "run.lock";
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file_.valid()) fail("cannot open {}: {}", path.string(), std::strerror(errno));
  int locked;
  do {
    locked = ::flock(file_.get(), LOCK_EX | LOCK_NB);
  } while (locked != 0 && errno == EINTR);
  if (locked != 0 && errno == EWOULDBLOCK) {
    std::array<char, 256> holder{};
    const auto length = ::pread(file_.get(), holder.data(), holder.size(), 0);
    std::string who(holder.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    if (const auto end = who.find('\n'); end != std::string::npos) who.resize(end);
    refuse("the run folder {} is in use by {}: wait until it ends, or give this run a folder of its own",
           run_folder.string(), who.empty() ? "another run" : who);
  }
  if (locked != 0) fail("cannot lock {}: {}", path.string(), std::strerror(errno));
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string me = fmt::format("process {} on {}\n", ::getpid(), host.data());
  const auto size = static_cast<ssize_t>(me.size());
  if (::ftruncate(file_.get(), 0) != 0 || ::pwrite(file_.get(), me.data(), me.size(), 0) != size) {
    fail("cannot write {}: {}", path.string(), std::strerror(errno));
  }
}

}  // namespace paceline
