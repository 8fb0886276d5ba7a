#include "paceline/data/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::HasSubstr;

TEST(OutputFolder, AppearsWholeAndReplacesTheOldOne) {
  const TemporaryFolder folder;
  const auto target = folder / "deep/out";
  {
    OutputFolder output(target);
    write_file(output.building() / "manifest.json", "first");
    write_file(output.building() / "ledger.json", "{}");
    EXPECT_FALSE(std::filesystem::exists(target));
    output.publish();
  }
  EXPECT_EQ(read_file(target / "manifest.json"), "first");
  {
    OutputFolder output(target.string() + "/");
    EXPECT_TRUE(std::filesystem::is_empty(output.building()));
    write_file(output.building() / "manifest.json", "second");
    EXPECT_EQ(read_file(target / "manifest.json"), "first");
    output.publish();
  }
  EXPECT_EQ(read_file(target / "manifest.json"), "second");
  EXPECT_FALSE(std::filesystem::exists(folder / "deep/out.building"));
}

TEST(OutputFolder, WithoutPublishTheOldOneStays) {
  const TemporaryFolder folder;
  write_file(folder / "out/manifest.json", "old");
  write_file(folder / "out/ledger.json", "{}");
  {
    OutputFolder output(folder / "out");
    write_file(output.building() / "manifest.json", "half");
  }
  EXPECT_EQ(read_file(folder / "out/manifest.json"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "out.building"));
}

TEST(OutputFolder, ClearsWhatAKilledBuildLeft) {
  const TemporaryFolder folder;
  write_file(folder / "out.building/train.bin.partial", "rest");
  const OutputFolder output(folder / "out");
  EXPECT_TRUE(std::filesystem::is_empty(output.building()));
}

TEST(OutputFolder, OneBuildAtATime) {
  const TemporaryFolder folder;
  const OutputFolder output(folder / "out");
  EXPECT_THAT(error_of([&] { OutputFolder second(folder / "out"); }), HasSubstr("out.building: another build"));
  EXPECT_TRUE(std::filesystem::exists(output.building()));
}

TEST(OutputFolder, OtherThingsAreNotReplaced) {
  const TemporaryFolder folder;
  write_file(folder / "out/thesis.txt", "precious");
  EXPECT_THAT(error_of([&] { OutputFolder output(folder / "out"); }), HasSubstr("holds no manifest.json"));
  EXPECT_EQ(read_file(folder / "out/thesis.txt"), "precious");
  write_file(folder / "step_00000004/manifest.json", "a checkpoint's");
  EXPECT_THAT(error_of([&] { OutputFolder output(folder / "step_00000004"); }), HasSubstr("holds no manifest.json with ledger.json"));
  EXPECT_EQ(read_file(folder / "step_00000004/manifest.json"), "a checkpoint's");
  write_file(folder / "file", "x");
  EXPECT_THAT(error_of([&] { OutputFolder output(folder / "file"); }), HasSubstr("not replaced"));
}

}  // namespace
}  // namespace paceline
