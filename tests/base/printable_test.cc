#include "paceline/base/printable.h"

#include <gtest/gtest.h>

namespace paceline {
namespace {

TEST(Printable, IsOneShortLine) {
  EXPECT_EQ(printable("layers.0.\xC3\xA9"), "layers.0.\xC3\xA9");
  EXPECT_EQ(printable("a\nb\x1B[31m\x7F"), "a?b?[31m?");
  EXPECT_EQ(printable(std::string(300, 'x')), std::string(300, 'x'));
  EXPECT_EQ(printable(std::string(301, 'x')), std::string(300, 'x') + "...");
}

}  // namespace
}  // namespace paceline
