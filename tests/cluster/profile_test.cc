#include "paceline/cluster/profile.h"

#include "paceline/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace paceline {
namespace {

using ::testing::HasSubstr;

MachineProfile measured() {
  MachineProfile profile = built_in_profile(2);
  profile.measured = true;
  profile.cpu = "A \"quoted\" CPU";
  profile.memory_bytes = 8'000'000'000;
  profile.products = {
      {.occupancy = {1, 2}, .pass = Pass::forward, .tokens = 1024, .in = 256, .out = 256, .flops_per_s = 50e9},
      {.occupancy = {1, 2}, .pass = Pass::forward, .tokens = 1024, .in = 1024, .out = 1024, .flops_per_s = 70e9},
      {.occupancy = {2, 1}, .pass = Pass::forward, .tokens = 1024, .in = 256, .out = 256, .flops_per_s = 90e9},
      {.occupancy = {2, 1}, .pass = Pass::backward_weight, .tokens = 1024, .in = 256, .out = 256, .flops_per_s = 80e9},
  };
  profile.operations = {{.operation = "swiglu", .occupancy = {1, 2}, .forward_bytes_per_s = 5e9, .backward_bytes_per_s = 4e9},
                        {.operation = "add", .occupancy = {1, 2}, .forward_bytes_per_s = 1.0 / 3}};
  profile.messages = {
      {.operation = "all_reduce", .ranks = 2, .bytes = 1000, .seconds = 1e-4},
      {.operation = "all_reduce", .ranks = 2, .bytes = 2000, .seconds = 3e-4},
      {.operation = "all_reduce", .ranks = 2, .bytes = 10000, .seconds = 11e-4},
      {.operation = "all_reduce", .ranks = 4, .bytes = 1000, .seconds = 7e-4},
  };
  return profile;
}

std::string refusal(const std::string& text) {
  try {
    parse_machine_profile(text, "machine.toml");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MachineProfile, IsReadBackAsWritten) {
  const std::string text = to_toml(measured());
  const MachineProfile read = parse_machine_profile(text, "x");
  EXPECT_EQ(to_toml(read), text);
  EXPECT_TRUE(read.measured);
  EXPECT_EQ(read.file, "x");
  EXPECT_EQ(read.cpu, "A \"quoted\" CPU");
  EXPECT_EQ(read.memory_bytes, 8'000'000'000);
  ASSERT_EQ(read.products.size(), 4u);
  EXPECT_EQ(read.products[3].pass, Pass::backward_weight);
  EXPECT_EQ(read.products[3].occupancy, (Occupancy{2, 1}));
  EXPECT_EQ(read.operations[1].forward_bytes_per_s, 1.0 / 3);
  EXPECT_EQ(read.messages[2].seconds, 11e-4);
}

TEST(MachineProfile, MeasuredPointsAreExactAndOthersLieBetween) {
  const MachineProfile profile = measured();
  EXPECT_EQ(profile.product_flops_per_s("fp32", {1, 2}, Pass::forward, 1024, 256, 256), 50e9);
  EXPECT_EQ(profile.product_flops_per_s("fp32", {1, 2}, Pass::forward, 1024, 1024, 1024), 70e9);
  EXPECT_NEAR(profile.product_flops_per_s("fp32", {1, 2}, Pass::forward, 1024, 512, 512), 60e9, 1.0);
  const double near_small = profile.product_flops_per_s("fp32", {1, 2}, Pass::forward, 1024, 256, 300);
  EXPECT_GT(near_small, 50e9);
  EXPECT_LT(near_small, 51e9);
}

TEST(MachineProfile, TheNearestOccupancyAndPassAreTaken) {
  const MachineProfile profile = measured();
  EXPECT_EQ(profile.product_flops_per_s("fp32", {2, 1}, Pass::forward, 1024, 256, 256), 90e9);
  EXPECT_EQ(profile.product_flops_per_s("fp32", {2, 1}, Pass::backward_weight, 1024, 256, 256), 80e9);
  EXPECT_EQ(profile.product_flops_per_s("fp32", {1, 1}, Pass::forward, 1024, 256, 256), 50e9);
  EXPECT_EQ(profile.product_flops_per_s("fp32", {8, 1}, Pass::forward, 1024, 256, 256), 4 * 90e9);
  EXPECT_EQ(profile.product_flops_per_s("fp64", {2, 1}, Pass::forward, 1024, 256, 256), 45e9);
  EXPECT_EQ(profile.peak_flops_per_s("fp32", {1, 2}), 70e9);
  EXPECT_EQ(profile.peak_flops_per_s("fp64", {2, 1}), 45e9);
}

TEST(MachineProfile, OperationsFallBackToTheMemory) {
  const MachineProfile profile = measured();
  EXPECT_EQ(profile.operation_bytes_per_s("swiglu", {1, 2}, true), 5e9);
  EXPECT_EQ(profile.operation_bytes_per_s("swiglu", {1, 2}, false), 4e9);
  EXPECT_EQ(profile.operation_bytes_per_s("rms_norm", {2, 1}, true), profile.memory_bytes_per_s({2, 1}));
}

TEST(MachineProfile, MessagesFollowTheMeasuredCurve) {
  const MachineProfile profile = measured();
  const auto seconds = [&](int ranks, int groups, double bytes) {
    return profile.message_seconds("gloo", "all_reduce", ranks, groups, bytes);
  };
  EXPECT_EQ(seconds(1, 1, 1e9), 0);
  EXPECT_EQ(seconds(2, 1, 8), 1e-4);
  EXPECT_NEAR(seconds(2, 1, 1500), 2e-4, 1e-12);
  EXPECT_NEAR(seconds(2, 1, 6000), 7e-4, 1e-12);
  EXPECT_NEAR(seconds(2, 1, 20000), 21e-4, 1e-12);
  EXPECT_EQ(seconds(4, 1, 1000), 7e-4);
  EXPECT_NEAR(seconds(2, 2, 8), 2e-4, 1e-12);          // 4 ranks on 2 cores
  EXPECT_NEAR(seconds(8, 1, 1000), 2 * 7e-4 * 3 / 2, 1e-12);  // log2(8) / log2(4), and twice the ranks on the cores
}

TEST(MachineProfile, RefusesBadFiles) {
  const std::string good = to_toml(measured());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_THAT(refusal("schema_version = "), HasSubstr("machine.toml:1"));
  EXPECT_THAT(refusal("a" + std::string(2000, '.')), HasSubstr("machine.toml:1: more than 1000 dots in a line"));
  EXPECT_THAT(refusal(replaced("schema_version = 1", "schema_version = 2")), HasSubstr("schema version 2"));
  EXPECT_THAT(refusal(replaced("flops_per_s = 50000000000.0", "flops_per_s = 0.0")), HasSubstr("products[0].flops_per_s"));
  EXPECT_THAT(refusal(replaced("flops_per_s = 50000000000.0", "flops_per_s = nan")), HasSubstr("products[0].flops_per_s"));
  EXPECT_THAT(refusal(replaced("cores = 2", "cores = 0")), HasSubstr("machine.cores"));
  EXPECT_THAT(refusal(replaced("cores = 2", "")), HasSubstr("machine.cores is missing"));
  EXPECT_THAT(refusal(replaced("cores = 2", "cores = 4294967296")), HasSubstr("machine.cores is 4294967296"));
  EXPECT_THAT(refusal(replaced("ranks = 4", "ranks = 4294967298")), HasSubstr("ranks is 4294967298"));
  EXPECT_THAT(refusal(replaced("pass = \"forward\"", "pass = \"sideways\"")), HasSubstr("sideways"));
  EXPECT_THAT(refusal(replaced("[machine]", "[machines]")), HasSubstr("[machine] is missing"));
}

TEST(MachineProfile, IsWrittenWholeAndFoundAtItsPlace) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("paceline_profile_test_" + std::to_string(::getpid()));
  ::setenv("XDG_CONFIG_HOME", folder.c_str(), 1);
  EXPECT_EQ(machine_profile_path(), (folder / "paceline" / "machine.toml").string());
  const MachineProfile none = find_machine_profile(3);
  EXPECT_FALSE(none.measured);
  EXPECT_EQ(none.cores, 3);
  write_machine_profile(measured(), machine_profile_path());
  const MachineProfile found = find_machine_profile(3);
  EXPECT_TRUE(found.measured);
  EXPECT_EQ(found.cores, 2);
  EXPECT_FALSE(std::filesystem::exists(machine_profile_path() + ".partial"));

  // A folder in its place: the file cannot be renamed there, and nothing is left beside it.
  const std::string occupied = (folder / "occupied").string();
  std::filesystem::create_directories(occupied + "/full");
  EXPECT_THROW(write_machine_profile(measured(), occupied), Error);
  EXPECT_FALSE(std::filesystem::exists(occupied + ".partial"));
  std::filesystem::remove_all(folder);

  ::unsetenv("XDG_CONFIG_HOME");
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(machine_profile_path(), "/home/someone/.config/paceline/machine.toml");
}

}  // namespace
}  // namespace paceline
