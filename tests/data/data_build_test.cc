#include "paceline/data/data_build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "paceline/base/philox.h"
#include "paceline/data/kneser_ney.h"
#include "paceline/data/token_loader.h"
#include "paceline/data/tokenizer_json.h"
#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::string_view words[] = {"river", "mill",  "bridge", "the", "of",   "council",
                                      "wheel", "water", "stone",  "old", "runs", "under"};

std::string sentence(std::uint64_t seed, int length) {
  const std::uint64_t key = stream_key(seed, "sentence");
  std::string text;
  for (int i = 0; i < length; ++i)
    text += std::string(i == 0 ? "" : " ") + std::string(words[random_bits(key, i) % std::size(words)]);
  return text + ".";
}

class DataBuildTest : public testing::Test {
 protected:
  DataBuildTest() {
    for (int i = 0; i < 60; ++i) {
      write_file(folder_ / fmt::format("in/{:02}.html", i), "<nav>menu</nav><p>" + sentence(i, 40 + i) + "</p>");
    }
    write_file(folder_ / "in/copy of 7.html", "<h1></h1><p>" + sentence(7, 47) + "</p>\n");  // sorts behind 07
    write_file(folder_ / "in/empty.html", "<nav>menu only</nav>");
    write_file(folder_ / "in/latin.txt", "caf\xE9 <|endoftext|> by the river");
    write_file(folder_ / "in/wide.txt", "\xFF\xFEx");
    settings_.input_paths = {(folder_ / "in").string()};
    settings_.output_folder = (folder_ / "out").string();
    settings_.vocabulary_size = 290;
    settings_.held_out_fraction = 0.2;
  }

  DataBuildResult build(int workers = 1, const std::string& output = "out") {
    DataSettings settings = settings_;
    settings.workers = workers;
    settings.output_folder = (folder_ / output).string();
    return build_data(settings, producer_, [](auto, auto, auto, auto) {});
  }

  std::vector<std::int32_t> stream(const std::string& name) const {
    const IndexedShard shard((folder_ / "out" / name).string());
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < shard.documents(); ++i) {
      const auto document = shard.read_document(i);
      tokens.insert(tokens.end(), document.begin(), document.end());
    }
    return tokens;
  }

  TemporaryFolder folder_;
  DataSettings settings_;
  DataProducer producer_{"0.0.1", "", ""};
};

TEST_F(DataBuildTest, EachDocumentIsAccountedFor) {
  const DataManifest manifest = build().manifest;
  EXPECT_EQ(manifest.documents_read, 64);
  EXPECT_EQ(manifest.documents_kept, 61);
  EXPECT_EQ(manifest.documents_removed,
            (std::map<std::string, std::int64_t>{{"exact duplicate", 1}, {"no text", 1}, {"not UTF-8 (UTF-16)", 1}}));
  EXPECT_EQ(manifest.replaced_characters, 1);
  EXPECT_EQ(manifest.shard("train").summary.documents + manifest.shard("held_out").summary.documents, 61);

  const auto ledger = nlohmann::json::parse(read_file(folder_ / "out/ledger.json"));
  EXPECT_EQ(ledger["kept"]["train"].size(), static_cast<std::size_t>(manifest.shard("train").summary.documents));
  for (const auto& entry : ledger["removed"]) {
    if (entry["reason"] == "exact duplicate") {
      EXPECT_THAT(entry["path"].get<std::string>(), HasSubstr("copy of 7.html"));
      EXPECT_THAT(entry["same_as"].get<std::string>(), HasSubstr("07.html"));
    }
  }
}

TEST_F(DataBuildTest, TheShardsHoldTheTexts) {
  const DataManifest manifest = build().manifest;
  const ByteBpe tokenizer = read_tokenizer_json(folder_ / "out/tokenizer.json");
  EXPECT_EQ(tokenizer.vocabulary_size(), 290);
  std::multiset<std::string> texts;
  std::int64_t bytes = 0;
  for (const std::string name : {"train", "held_out"}) {
    const IndexedShard shard((folder_ / "out" / name).string());
    EXPECT_NO_THROW(verify_token_range(shard, manifest.vocabulary_size));
    for (std::int64_t i = 0; i < shard.documents(); ++i) {
      auto tokens = shard.read_document(i);
      EXPECT_EQ(std::count(tokens.begin(), tokens.end(), manifest.end_of_text_id), 1);
      EXPECT_EQ(tokens.back(), manifest.end_of_text_id);
      tokens.pop_back();
      texts.insert(tokenizer.decode(tokens));
    }
    bytes += manifest.shard(name).text_bytes;
  }
  std::multiset<std::string> expected = {"caf\uFFFD <|endoftext|> by the river"};
  std::int64_t expected_bytes = static_cast<std::int64_t>(expected.begin()->size());
  for (int i = 0; i < 60; ++i) {
    expected.insert(sentence(i, 40 + i));
    expected_bytes += static_cast<std::int64_t>(sentence(i, 40 + i).size());
  }
  EXPECT_EQ(texts, expected);
  EXPECT_EQ(bytes, expected_bytes);
  EXPECT_NO_THROW(verify_data_files(read_manifest(folder_ / "out"), folder_ / "out", true));
}

TEST_F(DataBuildTest, SameBytesForAnyWorkers) {
  build(1, "one");
  for (const int workers : {2, 7}) {
    build(workers, "many");
    for (const char* name :
         {"tokenizer.json", "train.bin", "train.idx", "held_out.bin", "held_out.idx", "ledger.json", "manifest.json"}) {
      EXPECT_EQ(read_file(folder_ / "one" / name), read_file(folder_ / "many" / name))
          << name << ", " << workers << " workers";
    }
    std::filesystem::remove_all(folder_ / "many");
  }
}

TEST_F(DataBuildTest, TheSplitFollowsTheContent) {
  const auto held_out_before =
      nlohmann::json::parse((build(), read_file(folder_ / "out/ledger.json")))["kept"]["held_out"];
  write_file(folder_ / "in/00.html", "<p>a new first page</p>");
  for (const auto& path : held_out_before) {
    if (path.get<std::string>().ends_with("00.html")) continue;
    const auto held_out = nlohmann::json::parse((build(), read_file(folder_ / "out/ledger.json")))["kept"]["held_out"];
    EXPECT_TRUE(std::find(held_out.begin(), held_out.end(), path) != held_out.end()) << path;
  }
}

TEST_F(DataBuildTest, SecondBuildIsUpToDateUntilSomethingChanges) {
  EXPECT_FALSE(build().up_to_date);
  const DataBuildResult second = build();
  EXPECT_TRUE(second.up_to_date);
  write_file(folder_ / "in/00.html", "<p>changed</p>");
  const DataBuildResult third = build();
  EXPECT_FALSE(third.up_to_date);
  EXPECT_NE(third.manifest.data_version, second.manifest.data_version);
  settings_.seed = 2;
  EXPECT_FALSE(build().up_to_date);
  std::filesystem::resize_file(folder_ / "out/train.bin", 10);  // damage is repaired
  EXPECT_FALSE(build().up_to_date);
  EXPECT_NO_THROW(IndexedShard((folder_ / "out/train").string()));
}

TEST_F(DataBuildTest, BigramLossIsThatOfTheStreams) {
  const DataManifest manifest = build().manifest;
  EXPECT_EQ(*manifest.bigram_held_out_loss, KneserNeyBigram(stream("train"), 290).loss(stream("held_out")));
  EXPECT_LT(*manifest.bigram_held_out_loss, std::log(290));
  const TokenLoader loader((folder_ / "out/train").string(), 16, 1, true);
  EXPECT_EQ(loader.samples_per_epoch(), (manifest.shard("train").summary.tokens - 1) / 16);
}

TEST_F(DataBuildTest, RefusalsLeaveTheOldData) {
  build();
  const std::string before = read_file(folder_ / "out/manifest.json");
  settings_.vocabulary_size = 30000;
  EXPECT_THAT(error_of([this] { build(); }), HasSubstr("too small for a vocabulary of 30000"));
  settings_.vocabulary_size = 290;
  settings_.held_out_fraction = 1e-9;
  EXPECT_THAT(error_of([this] { build(); }), AllOf(HasSubstr("split.held_out_fraction"), HasSubstr("61 documents")));
  settings_.input_paths = {(folder_ / "in").string()};
  settings_.extensions = {".pdf"};
  EXPECT_THAT(error_of([this] { build(); }), HasSubstr("input.extensions"));
  EXPECT_EQ(read_file(folder_ / "out/manifest.json"), before);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.building"));
}

}  // namespace
}  // namespace paceline
