#include "paceline/base/toml_text.h"

#include <gtest/gtest.h>

#include <string>

namespace paceline {
namespace {

TEST(TomlText, FindsTheLineOfALongDottedKey) {
  const std::string most(most_dots_in_a_line, '.');
  EXPECT_EQ(line_with_too_many_dots(""), 0);
  EXPECT_EQ(line_with_too_many_dots(most + "\n" + most + "\n"), 0);
  EXPECT_EQ(line_with_too_many_dots("a = 1\n" + most + ".\n"), 2);
}

}  // namespace
}  // namespace paceline
