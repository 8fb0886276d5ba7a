#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace paceline {

/// Exit codes of the program: GNU's and the shell's conventions.
enum class ExitCode : int {
  success = 0,
  failure = 1,       ///< the work failed: a broken file, a dead rank, a full disk
  usage = 2,         ///< the command line or the configuration is wrong
  interrupted = 130, ///< ended by SIGINT, with what was to be saved saved
  terminated = 143,  ///< ended by SIGTERM, likewise
};

/// What a user is told: one line that names the file, key or rank and says what to do. Caught once, in main.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::failure)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

[[noreturn]] void throw_error(std::string message, ExitCode code);
[[noreturn]] void throw_broken_invariant(const char* file, int line, const char* condition);

/// Ends the command because its work failed. The message is one clear line, without a full stop.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(fmt::format(format, std::forward<Args>(args)...), ExitCode::failure);
}

/// Ends the command because what the user asked for is wrong (exit code 2).
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(fmt::format(format, std::forward<Args>(args)...), ExitCode::usage);
}

}  // namespace paceline

/// A broken invariant of the program itself, never triggered by user input.
#define PACELINE_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::paceline::throw_broken_invariant(__FILE__, __LINE__, #condition))
