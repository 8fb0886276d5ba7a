#include "paceline/supervision/usable_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <thread>

#include "paceline/base/error.h"

namespace paceline {
namespace {

using testing::HasSubstr;

class CgroupTree : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::path(testing::TempDir()) / ("cgroup-" + std::to_string(::getpid()));
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const auto file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::filesystem::path root_;
};

constexpr const char* unified_mount = "41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

TEST_F(CgroupTree, UnifiedTakesTheSmallestOnTheWayUp) {
  write("proc/self/cgroup", "0::/user/job/step\n");
  write("proc/self/mountinfo", unified_mount);
  write("sys/fs/cgroup/user/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
  write("sys/fs/cgroup/user/cpu.max", "400000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 4.0);
  write("sys/fs/cgroup/user/job/cpu.max", "100000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 1.0);
  write("sys/fs/cgroup/user/job/step/cpu.max", "150000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 1.0);
}

TEST_F(CgroupTree, FirstVersion) {
  write("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n");
  write("proc/self/mountinfo",
        "30 23 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup rw,cpu,cpuacct\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 2.5);
}

TEST_F(CgroupTree, GroupOutsideOfWhatTheContainerSees) {
  write("proc/self/cgroup", "0::/../elsewhere\n");
  write("proc/self/mountinfo", "41 31 0:38 /pod/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), 2.0);
}

TEST_F(CgroupTree, NothingThere) { EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt); }

TEST_F(CgroupTree, BrokenFilesAreNoLimit) {
  write("proc/self/cgroup", "garbage\n::\n0::/a\n");
  write("proc/self/mountinfo", "x\n- - -\n" + std::string(unified_mount));
  write("sys/fs/cgroup/a/cpu.max", "many\n");
  EXPECT_EQ(cgroup_cpu_limit(root_), std::nullopt);
}

TEST(UsableCores, RespectsTheAffinityMask) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), static_cast<int>(std::thread::hardware_concurrency()));
  std::thread([] {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(usable_cores(), 1);
  }).join();
}

ThreadChoice choose(int cores, int ranks, std::map<std::string, std::string> variables = {}) {
  return threads_per_rank(cores, ranks, [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(ThreadsPerRank, SharesTheCores) {
  EXPECT_EQ(choose(2, 1).threads, 2);
  EXPECT_EQ(choose(2, 2).threads, 1);
  EXPECT_EQ(choose(2, 4).threads, 1);
  EXPECT_EQ(choose(118, 8).threads, 14);
  EXPECT_EQ(choose(2, 1).reason, "2 usable cores / 1 local rank");
}

TEST(ThreadsPerRank, TheUserWins) {
  EXPECT_EQ(choose(2, 1, {{"OMP_NUM_THREADS", "1"}}).threads, 1);
  EXPECT_EQ(choose(2, 2, {{"OMP_NUM_THREADS", "7"}}).threads, 7);
  EXPECT_EQ(choose(8, 2, {{"OMP_NUM_THREADS", "3,2"}}).threads, 3);
  EXPECT_EQ(choose(8, 2, {{"OMP_NUM_THREADS", ""}}).threads, 4);
  EXPECT_THAT(choose(8, 2, {{"OMP_NUM_THREADS", "1"}, {"TORCHELASTIC_RUN_ID", "x"}}).reason,
      HasSubstr("OMP_NUM_THREADS=4"));
  EXPECT_EQ(choose(16, 4, {{"SLURM_CPUS_PER_TASK", "8"}}).threads, 8);
  EXPECT_EQ(choose(4, 4, {{"SLURM_CPUS_PER_TASK", "8"}}).threads, 4);
}

TEST(ThreadsPerRank, NonsenseIsRefused) {
  for (const char* value : {"0", "-2", "two", "2x"}) {
    try {
      choose(2, 1, {{"OMP_NUM_THREADS", value}});
      ADD_FAILURE() << value;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("OMP_NUM_THREADS=" + std::string(value)));
    }
  }
}

}  // namespace
}  // namespace paceline
