#include "paceline/base/replace_file.h"

#include "paceline/base/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace paceline {
namespace {

class ReplaceFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("paceline_replace_file_test_" + std::to_string(::getpid()));
};

TEST_F(ReplaceFile, WritesAndReplaces) {
  replace_file(path("x"), "first");
  EXPECT_EQ(read(path("x")), "first");
  replace_file(path("x"), "");
  EXPECT_EQ(read(path("x")), "");
  EXPECT_TRUE(std::filesystem::exists(path("x")));
  EXPECT_FALSE(std::filesystem::exists(path("x.partial")));
}

TEST_F(ReplaceFile, LeavesTheOldFileAndNothingElseWhenItFails) {
  std::filesystem::create_directories(path("taken/full"));
  EXPECT_THROW(replace_file(path("taken"), "text"), Error);
  EXPECT_TRUE(std::filesystem::is_directory(path("taken")));
  EXPECT_FALSE(std::filesystem::exists(path("taken.partial")));
  EXPECT_THROW(replace_file(path("no/such/folder"), "text"), Error);
}

TEST_F(ReplaceFile, NamesTheFileOfAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  std::filesystem::create_symlink("/dev/full", path("x.partial"));
  try {
    replace_file(path("x"), "text");
    FAIL() << "written to a full disk";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path("x") + ": cannot be written: No space left"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(std::filesystem::exists(path("x")));
}

}  // namespace
}  // namespace paceline
