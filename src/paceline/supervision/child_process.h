#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace paceline {

/// What a child process starts with.
struct ChildStart {
  std::vector<std::string> command;      ///< its arguments; command[0] is only the name it shows
  std::vector<std::string> environment;  ///< "NAME=value"
  int output = 1;                        ///< becomes its standard output
  int errors = 2;                        ///< becomes its standard error; standard input is /dev/null
  int kept = -1;                         ///< one more descriptor that it inherits under the same number
  sigset_t signal_mask{};                ///< the signals that it starts with blocked
};

/// Runs this very program (/proc/self/exe) as a child in a process group of its own that dies by SIGKILL with the
/// calling thread. Between fork and exec only async-signal-safe calls are made, so it may be called with threads
/// around.
pid_t start_child(const ChildStart& start);

/// "SIGKILL" for 9
std::string signal_name(int signal);

/// Of waitpid's status: "killed by SIGKILL" or "exit code 3"; and the shell's code for it, 137 or 3.
std::string exit_text(int status);
int exit_code_of(int status);

}  // namespace paceline
