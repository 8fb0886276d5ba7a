#include "paceline/data/byte_bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/base/error.h"
#include "paceline/base/philox.h"
#include "paceline/data/bpe_trainer.h"

namespace paceline {
namespace {

using testing::ElementsAre;

ByteBpe trained_on(std::string_view text, std::int64_t vocabulary_size) {
  WordCounts words;
  words.add(text);
  return ByteBpe(train_byte_bpe(words, vocabulary_size));
}

std::string random_text(std::uint64_t seed, std::size_t length, unsigned alphabet) {
  const std::uint64_t key = stream_key(seed, "text");
  std::string text;
  for (std::uint64_t i = 0; i < length; ++i) text += static_cast<char>(random_bits(key, i) % alphabet);
  return text;
}

TEST(ByteBpe, AnyBytesComeBack) {
  const std::string corpus = "the quick brown fox and the other fox, and then the others, quickly";
  const ByteBpe tokenizer = trained_on(corpus + corpus, 280);
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  for (const std::string& text :
       {every_byte, random_text(1, 5000, 256), std::string("\xF0\x9F\x91 cut"), std::string()}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_LT(tokenizer.encode(corpus).size(), corpus.size() / 2);
}

// A long word takes the heap, its parts the scan; with the merges in the same order both give the same ids.
TEST(ByteBpe, LongWordsAsShortOnes) {
  const ByteBpe tokenizer = trained_on("aaaaaaaa aaaa aa bbbb abab abab aabb aabb bbaa bbaa", 267);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::string word;
    const std::uint64_t key = stream_key(seed, "word");
    for (std::uint64_t i = 0; i < 90; ++i) word += random_bits(key, i) % 3 == 0 ? 'b' : 'a';
    // Naive: merge the lowest rank, leftmost, again and again.
    const std::string twice = word + word;  // 180 bytes: the heap
    std::vector<std::int32_t> symbols;
    for (const char c : twice) symbols.push_back(*tokenizer.find_token(std::string(1, c)));
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& merge : tokenizer.vocabulary().merges) {
        for (std::size_t i = 0; i + 1 < symbols.size() && !merged; ++i) {
          if (symbols[i] != merge.left || symbols[i + 1] != merge.right) continue;
          symbols[i] = merge.merged;
          symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          merged = true;
        }
        if (merged) break;
      }
    }
    EXPECT_EQ(tokenizer.encode(twice), symbols) << twice;
  }
}

TEST(ByteBpe, CacheChangesNothing) {
  const std::string letters = random_text(3, 4000, 4);
  std::string text;
  for (int i = 0; i < 60000; ++i) {
    text += static_cast<char>('a' + letters[static_cast<std::size_t>(i * 7 % 4000)]);
    if (letters[static_cast<std::size_t>(i % 4000)] == 0) text += ' ';
  }
  const ByteBpe tokenizer = trained_on(text, 600);
  BpeEncoder encoder(tokenizer);
  std::vector<std::int32_t> first;
  std::vector<std::int32_t> cached;
  encoder.encode(text, first);  // above the size at which the cache begins
  encoder.encode(text, cached);
  EXPECT_EQ(cached, first);
  std::vector<std::int32_t> in_pieces;  // each too small for a cache
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin + 1), text.size());
    const auto ids = tokenizer.encode(std::string_view(text).substr(begin, end - begin));
    in_pieces.insert(in_pieces.end(), ids.begin(), ids.end());
    begin = end;
  }
  EXPECT_EQ(in_pieces, first);
}

TEST(ByteBpe, EndOfTextInATextIsText) {
  const ByteBpe tokenizer = trained_on("some text, some more text", 260);
  const std::int32_t end = tokenizer.end_of_text_id();
  EXPECT_EQ(end, 259);
  const std::string text = "a<|endoftext|>b";
  EXPECT_THAT(tokenizer.encode(text), testing::Not(testing::Contains(end)));
  const auto ids = tokenizer.encode_with_added_tokens(text);
  EXPECT_THAT(ids, ElementsAre(*tokenizer.find_token("a"), end, *tokenizer.find_token("b")));
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(tokenizer.decode(ids, true), "ab");
}

TEST(ByteBpe, UnknownIdsAreRefused) {
  const ByteBpe tokenizer = trained_on("some text, some more text", 260);
  for (const std::int32_t id : {-1, 260}) {
    EXPECT_THROW(tokenizer.decode(std::vector{id}), Error);
  }
}

}  // namespace
}  // namespace paceline
