#include "paceline/supervision/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "paceline/base/error.h"

namespace paceline {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

[[noreturn]] void give_up(std::string_view what) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, what.data(), what.size());
  ::_exit(127);
}

}  // namespace

pid_t start_child(const ChildStart& start) {
  PACELINE_CHECK(!start.command.empty());
  const auto arguments = pointers(start.command);
  const auto environment = pointers(start.environment);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("cannot start a process: {}", ::strerror(errno));
  if (child > 0) {
    ::setpgid(child, child);
    return child;
  }
  if (::dup2(start.errors, STDERR_FILENO) < 0) ::_exit(127);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, STDIN_FILENO) < 0 || ::dup2(start.output, STDOUT_FILENO) < 0) {
    give_up("cannot set up the standard streams of a rank\n");
  }
  if (nothing > STDERR_FILENO) ::close(nothing);
  if (start.kept >= 0) ::fcntl(start.kept, F_SETFD, 0);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  ::sigprocmask(SIG_SETMASK, &start.signal_mask, nullptr);
  ::execve("/proc/self/exe", arguments.data(), environment.data());
  give_up("cannot execute /proc/self/exe as a rank (too many or too long arguments and variables?)\n");
}

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string exit_text(int status) {
  if (WIFSIGNALED(status)) return "killed by " + signal_name(WTERMSIG(status));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

}  // namespace paceline
