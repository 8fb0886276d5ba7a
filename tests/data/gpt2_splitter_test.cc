#include "paceline/data/gpt2_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace paceline {
namespace {

using testing::ElementsAre;

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> result;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = gpt2_word_end(text, begin);
    EXPECT_GT(end, begin);
    result.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return result;
}

// The words that Hugging Face tokenizers 0.23.3 gives for the same texts.
TEST(Gpt2Splitter, KnownWords) {
  EXPECT_THAT(words("I'll don't  we've\n\n x=12.5%  \t y's 'S''s"),
              ElementsAre("I", "'ll", " don", "'t", " ", " we", "'ve", "\n\n", " x", "=", "12", ".", "5", "%", "  \t",
                          " y", "'s", " '", "S", "''", "s"));
  EXPECT_THAT(words("a\u00a0\u00a0b \u3000c"), ElementsAre("a", "\u00a0", "\u00a0", "b", " ", "\u3000", "c"));
  EXPECT_THAT(words("x\u0301 \u00e9\u00bd\u2167\u0663 \u4e2d\u6587\u3002"),
              ElementsAre("x", "\u0301", " \u00e9", "\u00bd\u2167\u0663", " \u4e2d\u6587", "\u3002"));
  EXPECT_THAT(words("  lead"), ElementsAre(" ", " lead"));
  EXPECT_THAT(words("trail  "), ElementsAre("trail", "  "));
  EXPECT_THAT(words("\n\n\nq"), ElementsAre("\n\n", "\n", "q"));
  EXPECT_THAT(words("\u0085\u0085z\x1c w"), ElementsAre("\u0085", "\u0085", "z", "\x1c", " w"));
}

TEST(Gpt2Splitter, IllFormedBytesAreOther) { EXPECT_THAT(words("a\xFF\xC3!b"), ElementsAre("a", "\xFF\xC3!", "b")); }

}  // namespace
}  // namespace paceline
