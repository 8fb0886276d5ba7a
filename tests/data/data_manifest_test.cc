#include "paceline/data/data_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DataManifest sample_manifest() {
  DataManifest manifest;
  manifest.producer = {"1.2.3", "0123456789abcdef0123456789abcdef", "0123456789abcdef"};
  manifest.tokenizer_file = "tokenizer.json";
  manifest.vocabulary_size = 131;
  manifest.end_of_text_id = 130;
  manifest.documents_read = 7;
  manifest.documents_kept = 5;
  manifest.documents_removed = {{"exact duplicate", 2}};
  manifest.bigram_held_out_loss = 4.3931999999999998;
  return manifest;
}

TEST(DataManifest, ThereAndBack) {
  const TemporaryFolder folder;
  DataManifest manifest = sample_manifest();
  ShardWriter writer((folder / "train").string(), 131);
  writer.add_document(std::vector<std::int32_t>{5, 130});
  manifest.shards.push_back({"train", writer.finish(), 17});
  write_manifest(manifest, folder.path());
  const DataManifest read = read_manifest(folder.path());
  EXPECT_EQ(format_manifest(read), format_manifest(manifest));
  EXPECT_EQ(read.shard("train").summary.maximum_token, 130);
  EXPECT_EQ(read.shard("train").text_bytes, 17);
  EXPECT_EQ(*read.bigram_held_out_loss, 4.3931999999999998);
  EXPECT_THAT(error_of([&] { read.shard("test"); }), HasSubstr("no shard 'test', only: train"));
}

// A tokenizer of 131 entries: a table of 128 rows is refused at the start, one of 160 is usual.
TEST(DataManifest, TableRowsAgainstTheTokenizer) {
  const DataManifest manifest = sample_manifest();
  EXPECT_THAT(error_of([&] { require_vocabulary_fits(manifest, 128); }), AllOf(HasSubstr("131"), HasSubstr("128")));
  EXPECT_NO_THROW(require_vocabulary_fits(manifest, 131));
  EXPECT_NO_THROW(require_vocabulary_fits(manifest, 160));
}

TEST(DataManifest, FilesThatDifferAreNamed) {
  const TemporaryFolder folder;
  DataManifest manifest = sample_manifest();
  manifest.tokenizer = write_hashed_file(folder / "tokenizer.json", "{}");
  ShardWriter writer((folder / "train").string(), 131);
  writer.add_document(std::vector<std::int32_t>{5, 130});
  manifest.shards.push_back({"train", writer.finish(), 17});
  EXPECT_NO_THROW(verify_data_files(manifest, folder.path(), true));
  std::string bin = read_file(folder / "train.bin");
  bin[0] ^= 1;
  write_file(folder / "train.bin", bin);
  EXPECT_NO_THROW(verify_data_files(manifest, folder.path(), false));
  EXPECT_THAT(error_of([&] { verify_data_files(manifest, folder.path(), true); }),
              HasSubstr("train.bin: its content differs"));
  write_file(folder / "train.bin", bin + "x");
  EXPECT_THAT(error_of([&] { verify_data_files(manifest, folder.path(), false); }),
              HasSubstr("train.bin: has 5 bytes"));
  std::filesystem::remove(folder / "train.bin");
  EXPECT_THAT(error_of([&] { verify_data_files(manifest, folder.path(), false); }),
              HasSubstr("train.bin: No such file"));
}

TEST(DataManifest, DamageIsNamed) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& content) {
    write_file(folder / "manifest.json", content);
    return error_of([&] { read_manifest(folder.path()); });
  };
  EXPECT_THAT(error_of([&] { read_manifest(folder.path()); }), HasSubstr("manifest.json: No such file"));
  EXPECT_THAT(refusal("{"), HasSubstr("manifest.json: is not a data manifest"));
  EXPECT_THAT(refusal("{\"schema_version\": 1}"), HasSubstr("program_version"));
  EXPECT_THAT(refusal("{\"schema_version\": 2}"), HasSubstr("schema version 2"));
  EXPECT_THAT(refusal("{\"schema_version\": 4294967297}"), HasSubstr("4294967297 where a whole number was expected"));
  EXPECT_THAT(refusal("{\"schema_version\": 1, \"program_version\": " + std::string(200'000, '[')),
              HasSubstr("nests more than 200 brackets"));
  const std::string good = format_manifest(sample_manifest());
  for (const char* number : {"131.5", "1e300", "true", "18446744073709551615"}) {
    std::string changed = good;
    EXPECT_THAT(refusal(changed.replace(changed.find("131"), 3, number)), HasSubstr("a whole number was expected"));
  }
}

}  // namespace
}  // namespace paceline
