#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "paceline/supervision/child_process.h"
#include "paceline/supervision/control_connection.h"
#include "paceline/supervision/descriptor.h"

extern char** environ;

namespace paceline {

/// A fresh folder, also the mark by which all processes of a test are found.
class TestFolder {
 public:
  TestFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) / fmt::format("{}-{}-{}", test->test_suite_name(), test->name(),
        ::getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline bool wait_until(double seconds, const std::function<bool()>& condition) {
  const double end = monotonic_seconds() + seconds;
  while (!condition()) {
    if (monotonic_seconds() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

/// Living processes that were started with this folder in their environment.
inline std::vector<pid_t> processes_of(const std::filesystem::path& folder) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_text(entry.path() / "environ").find("TEST_FOLDER=" + folder.string()) != std::string::npos) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

/// This test program again, in a role of test_roles_test.cc; its standard output goes to `shown` or a file.
class TestProcess {
 public:
  TestProcess(const std::string& role, const TestFolder& folder, const std::map<std::string, std::string>& variables,
              const std::string& name = "run", int shown = -1)
      : folder_(folder.path()), name_(name) {
    const auto open = [&](const char* suffix) {
      return Descriptor(::open((folder_ / (name + suffix)).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    };
    const Descriptor output = open(".out"), errors = open(".err");
    ChildStart start;
    start.command = {"test", "--gtest_also_run_disabled_tests", "--gtest_filter=TestRole.DISABLED_" + role};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string inherited = *entry;
      if (!variables.contains(inherited.substr(0, inherited.find('=')))) start.environment.push_back(inherited);
    }
    start.environment.push_back("TEST_FOLDER=" + folder_.string());
    for (const auto& [key, value] : variables) start.environment.push_back(key + "=" + value);
    start.output = shown >= 0 ? shown : output.get();
    start.errors = errors.get();
    sigemptyset(&start.signal_mask);
    pid_ = start_child(start);
  }
  ~TestProcess() {
    if (!status_) {
      ::kill(-pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  TestProcess(const TestProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// The shell's exit code, or nothing if it is still running after that time.
  std::optional<int> wait(double seconds) {
    wait_until(seconds, [&] {
      int status = 0;
      if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
      return status_.has_value();
    });
    if (!status_) return std::nullopt;
    return exit_code_of(*status_);
  }
  std::string output() const { return read_text(folder_ / (name_ + ".out")); }
  std::string errors() const { return read_text(folder_ / (name_ + ".err")); }
  std::string last_line() const {
    std::string text = errors();
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  }

 private:
  std::filesystem::path folder_;
  std::string name_;
  pid_t pid_ = 0;
  std::optional<int> status_;
};

/// The process id that a rank wrote down when it was connected and at work.
inline pid_t rank_pid(const TestFolder& folder, int rank) {
  pid_t pid = 0;
  EXPECT_TRUE(wait_until(20, [&] {
    std::ifstream(folder / fmt::format("pid_{}", rank)) >> pid;
    return pid > 0;
  })) << "rank " << rank << " does not start";
  return pid;
}

}  // namespace paceline
