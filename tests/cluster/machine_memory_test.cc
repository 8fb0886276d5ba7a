#include "paceline/cluster/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace paceline {
namespace {

TEST(MachineMemory, IsCutToTheSmallestLimitOnTheWayToTheRoot) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("paceline_memory_test_" + std::to_string(::getpid()));
  const std::string root = folder.string() + "/";
  EXPECT_GT(usable_memory_bytes(root), 1 << 20);  // no group: the machine's
  std::filesystem::create_directories(folder / "proc/self");
  std::filesystem::create_directories(folder / "sys/fs/cgroup/job/step");
  std::ofstream(folder / "proc/self/cgroup") << "0::/job/step\n";
  std::ofstream(folder / "sys/fs/cgroup/job/step/memory.max") << "max\n";
  const std::int64_t machine = usable_memory_bytes(root);
  std::ofstream(folder / "sys/fs/cgroup/job/memory.max") << "104857600\n";
  EXPECT_GT(machine, 104857600);
  EXPECT_EQ(usable_memory_bytes(root), 104857600);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace paceline
