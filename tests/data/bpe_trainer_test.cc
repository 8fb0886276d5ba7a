#include "paceline/data/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "paceline/base/philox.h"
#include "paceline/data/byte_alphabet.h"
#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> merges_of(const BpeVocabulary& vocabulary) {
  std::vector<std::string> result;
  for (const auto& merge : vocabulary.merges) {
    result.push_back(to_byte_alphabet(vocabulary.tokens[static_cast<std::size_t>(merge.left)]) + " " +
                     to_byte_alphabet(vocabulary.tokens[static_cast<std::size_t>(merge.right)]));
  }
  return result;
}

BpeVocabulary train(std::string_view text, std::int64_t size) {
  WordCounts words;
  words.add(text);
  return train_byte_bpe(words, size);
}

// Merges and ids of Hugging Face's BpeTrainer (tokenizers 0.23.3, min_frequency 2, the byte alphabet first).
TEST(BpeTrainer, KnownMerges) {
  const ByteBpe tokenizer(
      train("the cat sat on the mat, the cat's hat is on the mat\nthat cat's at the mat's end; th\u00e9 na\u00efve "
            "caf\u00e9, "
            "na\u00efve caf\u00e9\n  the   cat\n\n123 123 12 abcabc abcabc",
            284));
  EXPECT_THAT(merges_of(tokenizer.vocabulary()),
              ElementsAre("a t", "t h", "Ġ c", "Ġ th", "Ġth e", "a b", "Ġc at", "ab c", "' s", "1 2", "m at", "Ã ©",
                          "Ġ mat", "a f", "a Ã", "n aÃ", "o n", "v e", "¯ ve", "Ġ abc", "Ġ 12", "Ġ naÃ", "Ġ on",
                          "Ġc af", "Ġabc abc", "ĠnaÃ ¯ve", "Ġcaf Ã©"));
  EXPECT_THAT(tokenizer.encode("the cat's na\u00efve hat 12 \u00a0\n  x"),
              ElementsAre(257, 68, 262, 264, 281, 220, 71, 256, 276, 220, 126, 254, 198, 220, 220, 87));
}

TEST(BpeTrainer, NoTokenTwice) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::string text;
    const std::uint64_t key = stream_key(seed, "letters");
    for (std::uint64_t i = 0; i < 3000; ++i) text += " aaab"[random_bits(key, i) % 5];
    std::vector<std::string> tokens = train(text, 300).tokens;
    std::sort(tokens.begin(), tokens.end());
    EXPECT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
  }
}

TEST(BpeTrainer, PartsAddUp) {
  WordCounts first;
  WordCounts second;
  first.add("one two three two");
  second.add(" two three one");
  second.merge(first);
  EXPECT_EQ(merges_of(train_byte_bpe(second, 262)), merges_of(train("one two three two two three one", 262)));
}

TEST(BpeTrainer, TooSmallTextIsRefusedWithItsLimit) {
  EXPECT_THAT(error_of([] { train("ab ab ab", 300); }), HasSubstr("vocabulary of 300: its pairs give 259 tokens"));
  EXPECT_THAT(error_of([] { train("ab ab ab", 256); }), HasSubstr("at least 257"));
}

}  // namespace
}  // namespace paceline
