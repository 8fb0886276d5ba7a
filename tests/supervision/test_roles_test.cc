// Not tests, but what the processes of the other tests do: this program is run again with one of these.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "paceline/base/error.h"
#include "paceline/supervision/local_launcher.h"
#include "paceline/supervision/peer_supervision.h"
#include "test_process.h"

namespace paceline {
namespace {

std::string variable(const char* name, const char* otherwise = "") {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path.string() + ".part") << text;
  std::filesystem::rename(path.string() + ".part", path);
}

Exchange files_in(const std::filesystem::path& folder) {
  return {[=](const std::string&, const std::string& value) { write_file(folder / "exchange", value); },
          [=](const std::string&) {
            wait_until(20, [&] { return std::filesystem::exists(folder / "exchange"); });
            return read_text(folder / "exchange");
          }};
}

/// A rank that works until it is told otherwise. TEST_FAULT="<rank> <what>" names what one rank does when the file `go`
/// appears.
int work(const std::filesystem::path& folder) {
  const auto limit = variable("TEST_MAX_SECONDS");
  StopRequest stop(limit.empty() ? std::nullopt : std::optional(std::stod(limit) / 60));
  const LaunchEnvironment launch = detect_launch();
  std::stringstream fault(variable("TEST_FAULT"));
  int faulty = -1;
  std::string what;
  fault >> faulty >> what;
  if (faulty == launch.rank && what == "refuse") refuse("parallel.tp=3 does not divide the 4 heads");

  SupervisionOptions options;
  options.hang_timeout_s = std::stod(variable("TEST_HANG_S", "120"));
  options.silence_s = std::stod(variable("TEST_SILENCE_S", "5"));
  RankSupervision supervision(launch, files_in(folder), stop, options);
  Activity& activity = supervision.activity();
  std::cout << "rank " << launch.rank << " works with " << variable("OMP_NUM_THREADS") << " threads" << std::endl;
  std::cerr << "warning of rank " << launch.rank << std::endl;
  write_file(folder / ("pid_" + std::to_string(launch.rank)), std::to_string(::getpid()));
  for (int step = 0; !stop.requested(); ++step) {
    activity.begin("backward", step, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!std::filesystem::exists(folder / "go")) continue;
    if (what == "end") break;
    if (what == "chatter") {
      if (launch.rank == 0) std::cout << std::string(300000, 'x') << "end of chatter" << std::endl;
      break;
    }
    if (faulty == launch.rank) {
      if (what == "exit3") std::_Exit(3);
      if (what == "leave") std::_Exit(0);
      if (what == "segv") ::raise(SIGSEGV);
      if (what == "abort") std::abort();
      if (what == "hang") ::pause();
      if (what == "throw") {
        supervision.report_failure("the disk is full");
        return 1;
      }
    } else if (what == "hang" || what == "wait") {
      const Activity::Waiting waiting(activity, faulty);
      ::pause();
    }
  }
  if (stop.requested()) {
    if (faulty == launch.rank && what == "stubborn") ::pause();
    write_file(folder / ("saved_" + std::to_string(launch.rank)), stop.reason());
  }
  supervision.finish();
  return stop.requested() ? stop_exit_code(stop.cause()) : 0;
}

TEST(TestRole, DISABLED_rank) {
  prctl(PR_SET_DUMPABLE, 0);  // no core files
  int code = 1;
  try {
    code = work(variable("TEST_FOLDER"));
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << std::endl;
    code = static_cast<int>(error.code());
  }
  std::_Exit(code);
}

TEST(TestRole, DISABLED_launcher) {
  LocalLaunchOptions options;
  options.log_folder = std::filesystem::path(variable("TEST_FOLDER")) / "logs";
  options.grace_s = std::stod(variable("TEST_GRACE_S", "8"));
  options.hang_timeout_s = std::stod(variable("TEST_HANG_S", "120"));
  options.silence_s = std::stod(variable("TEST_SILENCE_S", "5"));
  options.environment = {{"TEST_GIVEN", "yes"}};
  if (!variable("TEST_BIG").empty()) options.environment.emplace_back("BIG", std::string(1 << 22, 'x'));
  std::_Exit(launch_local(std::stoi(variable("TEST_NPROC", "2")),
                          {"rank", "--gtest_also_run_disabled_tests",
                              "--gtest_filter=TestRole.DISABLED_" + variable("TEST_ROLE", "rank")},
                          options));
}

/// What a rank learns from its environment.
TEST(TestRole, DISABLED_detect) {
  const LaunchEnvironment launch = detect_launch();
  std::cout << fmt::format("rank {} local {}/{} of {} at {}:{}\n", launch.rank, launch.local_rank,
      launch.local_world_size,
                           launch.text(), launch.master_addr, launch.master_port);
}

/// A rank that knows nothing of supervision.
TEST(TestRole, DISABLED_plain) {
  std::cout << "plain " << variable("RANK") << " of " << variable("WORLD_SIZE") << " given " << variable("TEST_GIVEN")
            << " foreign " << variable("OMPI_COMM_WORLD_RANK") << std::endl;
  if (variable("RANK") == variable("TEST_SLEEPER", "-")) {
    if (::fork() == 0) {
      ::pause();  // a process of its own that outlives it
    }
    ::pause();
  }
  std::_Exit(variable("RANK") == variable("TEST_FAILING", "-") ? 5 : 0);
}

}  // namespace
}  // namespace paceline
