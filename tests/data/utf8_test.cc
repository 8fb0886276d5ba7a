#include "paceline/data/utf8.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

std::string repaired(const std::string& bytes, std::size_t expected_replacements) {
  std::size_t replaced = 0;
  const std::string text = repair_utf8(bytes, replaced);
  EXPECT_EQ(replaced, expected_replacements) << bytes;
  return text;
}

TEST(Utf8, ValidTextStaysAsItIs) {
  const std::string text("plain ascii text, caf\xC3\xA9 \xE4\xB8\xAD \xF0\x9F\x91\x8D and a NUL \0.", 43);
  EXPECT_EQ(repaired(text, 0), text);
  EXPECT_EQ(repaired("", 0), "");
}

// The counts are those of the WHATWG decoder: one for the longest valid prefix of a sequence.
TEST(Utf8, IllFormedSequencesBecomeReplacementCharacters) {
  EXPECT_EQ(repaired("caf\xE9 cr\xE8me", 2), "caf\uFFFD cr\uFFFDme");
  EXPECT_EQ(repaired("x\xE4\xB8", 1), "x\uFFFD");  // cut at the end
  EXPECT_EQ(repaired("\xF0\x9F\x91"
                     "a",
                     1),
            "\uFFFDa");                                          // cut in the middle
  EXPECT_EQ(repaired("\xED\xA0\x80", 3), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(repaired("\xC0\x80", 2), "\uFFFD\uFFFD");            // overlong
  EXPECT_EQ(repaired("\xFF\xFE"
                     "1234567890 \x80 z",
                     3),
            "\uFFFD\uFFFD"
            "1234567890 \uFFFD z");
}

TEST(Utf8, CodePointsThereAndBack) {
  for (const char32_t code_point : {U'a', U'é', U'中', U'👍', char32_t{0x10FFFF}}) {
    std::string text;
    append_utf8(text, code_point);
    std::size_t position = 0;
    EXPECT_EQ(next_code_point(text, position), code_point);
    EXPECT_EQ(position, text.size());
  }
}

}  // namespace
}  // namespace paceline
