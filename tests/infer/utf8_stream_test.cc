#include "paceline/infer/utf8_stream.h"

#include <gtest/gtest.h>

#include <vector>

namespace paceline {
namespace {

TEST(Utf8Stream, GivesWholeCharactersOnly) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("a\xC3"), "a");
  EXPECT_EQ(stream.add("\xA9\xE2\x82"), "é");
  EXPECT_EQ(stream.add("\xAC\xF0"), "€");
  EXPECT_EQ(stream.add("\x9F\x9A"), "");
  EXPECT_EQ(stream.add("\xB4z"), "🚴z");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, PiecesOfOneByteGiveTheTextBack) {
  const std::string text = "Zürich 東京 🚴 end";
  Utf8Stream stream;
  std::string whole;
  for (const char byte : text) whole += stream.add({&byte, 1});
  EXPECT_EQ(whole + stream.finish(), text);
}

TEST(Utf8Stream, IllFormedBytesBecomeTheReplacementCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.add("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(stream.add("\xE2"), "");
  EXPECT_EQ(stream.add("b"), "\xEF\xBF\xBD" "b");
  EXPECT_EQ(stream.add("\xF0\x9F"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace paceline
