#include "paceline/data/data_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DataSettingsTest : public testing::Test {
 protected:
  DataSettings read(const std::string& toml) {
    write_file(folder_ / "data.toml", toml);
    return read_data_settings(folder_ / "data.toml");
  }
  std::string refusal(const std::string& toml) {
    return error_of([&] { read(toml); });
  }
  TemporaryFolder folder_;
  const std::string least_ = "[input]\npaths = [\"in\"]\n[output]\nfolder = \"out\"\n";
};

TEST_F(DataSettingsTest, ReadsAllKeys) {
  const DataSettings settings = read(
      "[input]\npaths = [\"a\", \"b\"]\nextensions = [\".md\"]\n[output]\nfolder = "
      "\"out\"\n[tokenizer]\nvocabulary_size = 2048\n"
      "[split]\nheld_out_fraction = 0.25\nseed = 9\n[run]\nworkers = 3\n");
  EXPECT_THAT(settings.input_paths, ElementsAre("a", "b"));
  EXPECT_THAT(settings.extensions, ElementsAre(".md"));
  EXPECT_EQ(settings.output_folder, "out");
  EXPECT_EQ(settings.vocabulary_size, 2048);
  EXPECT_EQ(settings.held_out_fraction, 0.25);
  EXPECT_EQ(settings.seed, 9U);
  EXPECT_EQ(settings.workers, 3);
}

TEST_F(DataSettingsTest, OnlyPathsAndFolderAreNeeded) {
  EXPECT_EQ(read(least_).vocabulary_size, DataSettings().vocabulary_size);
  EXPECT_THAT(refusal("[output]\nfolder = \"out\"\n"), HasSubstr("data.toml: input.paths is missing"));
  EXPECT_THAT(refusal("[input]\npaths = [\"in\"]\n"), HasSubstr("data.toml: output.folder is missing"));
}

TEST_F(DataSettingsTest, UnknownKeysNameTheNearest) {
  EXPECT_THAT(
      refusal(least_ + "[tokenizer]\nvocab_size = 5000\n"),
      AllOf(HasSubstr("data.toml:6:"), HasSubstr("'tokenizer.vocab_size'"), HasSubstr("'tokenizer.vocabulary_size'")));
  EXPECT_THAT(refusal(least_ + "[spilt]\nseed = 1\n"), AllOf(HasSubstr("data.toml:6:"), HasSubstr("'split.seed'")));
  EXPECT_THAT(refusal("seed = 1\n" + least_), AllOf(HasSubstr("data.toml:1:"), HasSubstr("outside a section")));
}

TEST_F(DataSettingsTest, WrongValuesNameLineAndRange) {
  EXPECT_THAT(refusal(least_ + "[tokenizer]\nvocabulary_size = \"big\"\n"),
              AllOf(HasSubstr("data.toml:6:"), HasSubstr("from 257 to")));
  EXPECT_THAT(refusal(least_ + "[tokenizer]\nvocabulary_size = 256\n"), HasSubstr("from 257 to"));
  EXPECT_THAT(refusal(least_ + "[split]\nheld_out_fraction = 1\n"), HasSubstr("between 0 and 1"));
  EXPECT_THAT(refusal(least_ + "[split]\nheld_out_fraction = nan\n"), HasSubstr("between 0 and 1"));
  EXPECT_THAT(refusal(least_ + "[run]\nworkers = 1.5\n"), HasSubstr("run.workers must be a whole number"));
  EXPECT_THAT(refusal("[input]\npaths = \"in\"\n"), HasSubstr("data.toml:2: input.paths must be a list"));
  EXPECT_THAT(refusal("[input]\npaths = [\"in\"\n[output]\n"), HasSubstr("data.toml:3:"));
  EXPECT_THAT(error_of([] { read_data_settings("/nonexistent/data.toml"); }), HasSubstr("/nonexistent/data.toml"));
}

}  // namespace
}  // namespace paceline
