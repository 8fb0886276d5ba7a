#include "paceline/data/indexed_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string bytes_of_hex(std::string_view hex) {
  std::string bytes;
  std::string digits;
  for (const char c : hex) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() == 2) {
      bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
      digits.clear();
    }
  }
  return bytes;
}

// Documents [1, 2, 3] and [4, 5] as Megatron writes them.
const std::string golden_bin = bytes_of_hex("0100 0200 0300 0400 0500");
const std::string golden_idx = bytes_of_hex(
    "4D4D49444944580000 0100000000000000 08 0200000000000000 0300000000000000 03000000 02000000"
    "0000000000000000 0600000000000000 0000000000000000 0100000000000000 0200000000000000");

class IndexedShardTest : public testing::Test {
 protected:
  void write(const std::string& bin, const std::string& idx) {
    write_file(folder_ / "s.bin", bin);
    write_file(folder_ / "s.idx", idx);
  }
  std::string prefix() const { return (folder_ / "s").string(); }
  std::string refusal(const std::string& bin, const std::string& idx) {
    write(bin, idx);
    return error_of([this] { IndexedShard shard(prefix()); });
  }
  static std::string changed(std::string bytes, std::size_t offset, std::uint64_t value, std::size_t width) {
    std::memcpy(bytes.data() + offset, &value, width);
    return bytes;
  }

  TemporaryFolder folder_;
};

TEST_F(IndexedShardTest, WritesMegatronsBytes) {
  ShardWriter writer(prefix(), 100);
  writer.add_document(std::vector<std::int32_t>{1, 2, 3});
  writer.add_document(std::vector<std::int32_t>{4, 5});
  const ShardSummary summary = writer.finish();
  EXPECT_EQ(read_file(folder_ / "s.bin"), golden_bin);
  EXPECT_EQ(read_file(folder_ / "s.idx"), golden_idx);
  EXPECT_EQ(summary.documents, 2);
  EXPECT_EQ(summary.tokens, 5);
  EXPECT_EQ(summary.minimum_token, 1);
  EXPECT_EQ(summary.maximum_token, 5);
  EXPECT_EQ(summary.bin.bytes, 10U);
  EXPECT_EQ(summary.bin.xxh3, digest_file(folder_ / "s.bin").xxh3);
  EXPECT_EQ(summary.idx.xxh3, digest_file(folder_ / "s.idx").xxh3);
}

TEST_F(IndexedShardTest, ReadsThem) {
  write(golden_bin, golden_idx);
  const IndexedShard shard(prefix());
  EXPECT_EQ(shard.documents(), 2);
  EXPECT_EQ(shard.tokens(), 5);
  EXPECT_THAT(shard.read_document(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(shard.read_document(1), ElementsAre(4, 5));
  std::vector<std::int64_t> across(3);
  shard.read(2, across);
  EXPECT_THAT(across, ElementsAre(3, 4, 5));
  EXPECT_EQ(shard.document_of(2), 0);
  EXPECT_EQ(shard.document_of(3), 1);
  EXPECT_EQ(shard.document_begin(2), 5);
}

TEST_F(IndexedShardTest, NothingAppearsBeforeTheEnd) {
  {
    ShardWriter writer(prefix(), 100);
    writer.add_document(std::vector<std::int32_t>{1, 2, 3});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// The width changes at 65,500 and each vocabulary's largest id comes back.
TEST_F(IndexedShardTest, LargestIdsComeBack) {
  for (const std::int64_t vocabulary : {65499, 65500, 65536, 65537, 119547}) {
    const auto largest = static_cast<std::int32_t>(vocabulary - 1);
    ShardWriter writer(prefix(), vocabulary);
    writer.add_document(std::vector<std::int32_t>{0, largest, 7});
    EXPECT_EQ(writer.finish().maximum_token, largest);
    const IndexedShard shard(prefix());
    EXPECT_EQ(shard.token_type(), vocabulary < 65500 ? TokenType::uint16 : TokenType::int32);
    EXPECT_THAT(shard.read_document(0), ElementsAre(0, largest, 7));
    EXPECT_NO_THROW(verify_token_range(shard, vocabulary));
    EXPECT_THAT(error_of([&] { verify_token_range(shard, vocabulary - 1); }),
                AllOf(HasSubstr("s.bin: token 1 (document 0)"), HasSubstr("id " + std::to_string(largest)),
                      HasSubstr("0 to " + std::to_string(largest - 1))));
  }
}

TEST_F(IndexedShardTest, WriterRefusesATokenBeyondTheVocabulary) {
  ShardWriter writer(prefix(), 100);
  writer.add_document(std::vector<std::int32_t>{99});
  EXPECT_THAT(error_of([&] { writer.add_document(std::vector<std::int32_t>{5, 100}); }),
              AllOf(HasSubstr("s.bin"), HasSubstr("document 1"), HasSubstr("id 100"), HasSubstr("0 to 99")));
  EXPECT_THAT(error_of([&] { writer.add_document(std::vector<std::int32_t>{-1}); }), HasSubstr("id -1"));
}

TEST_F(IndexedShardTest, TheIndexSaysHowWideTokensAre) {
  const auto with_code = [](std::string idx, char code, std::uint64_t width) {
    idx[17] = code;
    return changed(std::move(idx), 34 + 8 + 8, 3 * width, 8);
  };
  write(bytes_of_hex("01000000 02000000 FFFF0100 04000000 05000000"), with_code(golden_idx, 4, 4));
  EXPECT_THAT(IndexedShard(prefix()).read_document(0), ElementsAre(1, 2, 131071));
  write(bytes_of_hex("01 02 FF 04 05"), with_code(golden_idx, 1, 1));
  EXPECT_THAT(IndexedShard(prefix()).read_document(0), ElementsAre(1, 2, 255));
  write(bytes_of_hex("0100 0200 FFFF 0400 0500"), with_code(golden_idx, 3, 2));  // int16: -1
  EXPECT_THAT(error_of([&] { verify_token_range(IndexedShard(prefix()), 100); }),
              HasSubstr("token 2 (document 0) has the id -1"));
}

TEST_F(IndexedShardTest, SequenceModesOfMultimodalDataAreAccepted) {
  write(golden_bin, golden_idx + std::string(2, '\0'));
  EXPECT_EQ(IndexedShard(prefix()).tokens(), 5);
}

TEST_F(IndexedShardTest, AnyCutIsNamed) {
  for (std::size_t length = 0; length < golden_idx.size(); ++length) {
    EXPECT_THAT(refusal(golden_bin, golden_idx.substr(0, length)), HasSubstr("s.idx: ")) << length;
  }
  for (std::size_t length = 0; length < golden_bin.size(); ++length) {
    EXPECT_THAT(refusal(golden_bin.substr(0, length), golden_idx),
                AllOf(HasSubstr("s.bin: has " + std::to_string(length) + " bytes"), HasSubstr("asks for 10"),
                      HasSubstr("truncated")));
  }
  EXPECT_THAT(refusal(golden_bin + "xx", golden_idx), HasSubstr("s.bin: has 12 bytes"));
}

TEST_F(IndexedShardTest, DamageIsNamed) {
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 0, 'X', 1)), HasSubstr("s.idx: is not a Megatron index"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 9, 2, 8)), HasSubstr("index version 2"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 17, 7, 1)), HasSubstr("element type code 7"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 18, 1ULL << 62, 8)), HasSubstr("s.idx: has 82 bytes"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 26, ~0ULL, 8)), HasSubstr("s.idx: has 82 bytes"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 34, 0xFFFFFFFF, 4)), HasSubstr("sequence 0 has the length -1"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 50, 8, 8)), HasSubstr("sequence 1 begins at byte 8"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 58, 1, 8)), HasSubstr("document entry 0 is 1"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 66, 3, 8)), HasSubstr("document entry 1 is 3"));
  EXPECT_THAT(refusal(golden_bin, changed(golden_idx, 74, 1, 8)), HasSubstr("documents end at sequence 1"));
}

TEST_F(IndexedShardTest, MissingFilesAreNamed) {
  EXPECT_THAT(error_of([this] { IndexedShard shard(prefix()); }), HasSubstr("s.idx: No such file"));
  write_file(folder_ / "s.idx", golden_idx);
  EXPECT_THAT(error_of([this] { IndexedShard shard(prefix()); }), HasSubstr("s.bin: No such file"));
}

TEST_F(IndexedShardTest, ADocumentOfSeveralSequencesAndEmptyOnes) {
  // sequences of 3, 0 and 2 tokens; documents: {3, 0}, {}, {2}
  std::string idx = bytes_of_hex(
      "4D4D49444944580000 0100000000000000 08 0300000000000000 0400000000000000 03000000 00000000 02000000"
      "0000000000000000 0600000000000000 0600000000000000"
      "0000000000000000 0200000000000000 0200000000000000 0300000000000000");
  write(golden_bin, idx);
  const IndexedShard shard(prefix());
  EXPECT_EQ(shard.documents(), 3);
  EXPECT_EQ(shard.sequences(), 3);
  EXPECT_THAT(shard.read_document(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(shard.read_document(1), ElementsAre());
  EXPECT_EQ(shard.document_of(3), 2);
}

}  // namespace
}  // namespace paceline
