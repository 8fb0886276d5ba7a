#include "paceline/supervision/run_lock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "paceline/base/error.h"

namespace paceline {
namespace {

std::filesystem::path fresh_folder(const char* name) {
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("{}-{}", name, ::getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(RunLock, TheSecondIsRefusedNamingTheFirst) {
  const auto folder = fresh_folder("lock");
  std::optional<RunLock> first(folder);
  try {
    RunLock second(folder);
    ADD_FAILURE() << "two holders";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("process {} on ", ::getpid())));
    EXPECT_THAT(error.what(), testing::HasSubstr(folder.string()));
  }
  first.reset();
  EXPECT_NO_THROW(RunLock third(folder));
  std::filesystem::remove_all(folder);
}

TEST(RunLock, AKilledHolderHoldsNothing) {
  const auto folder = fresh_folder("lock-killed");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder);
    [[maybe_unused]] const auto written = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THROW(RunLock{folder}, Error);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(RunLock{folder});
  ::close(ready[0]);
  ::close(ready[1]);
  std::filesystem::remove_all(folder);
}

TEST(RunLock, AFolderThatCannotBeIsNamed) {
  try {
    RunLock lock("/proc/no-such-folder/run");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("/proc/no-such-folder/run"));
  }
}

}  // namespace
}  // namespace paceline
