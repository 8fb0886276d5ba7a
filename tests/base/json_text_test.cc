#include "paceline/base/json_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace paceline {
namespace {

using nlohmann::json;

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonText, LimitsTheDepthOfBrackets) {
  EXPECT_FALSE(json_nests_too_deep(nested(deepest_json)));
  EXPECT_TRUE(json_nests_too_deep(nested(deepest_json + 1)));
  EXPECT_TRUE(json_nests_too_deep(std::string(1'000'000, '[')));
  std::string flat = "[";
  for (int i = 0; i < 1000; ++i) flat += "{},";
  EXPECT_FALSE(json_nests_too_deep(flat + "1]"));
}

TEST(JsonText, BracketsInsideStringsDoNotCount) {
  EXPECT_FALSE(json_nests_too_deep("\"" + std::string(1000, '[') + "\""));
  EXPECT_FALSE(json_nests_too_deep("\"\\\"" + std::string(1000, '[') + "\""));
  EXPECT_TRUE(json_nests_too_deep("[\"\\\\\"," + nested(deepest_json) + "]"));
}

TEST(JsonText, ParsesOrDiscards) {
  EXPECT_EQ(parse_json("{\"a\": [1]}").at("a").at(0), 1);
  EXPECT_TRUE(parse_json("{\"a\": ").is_discarded());
  EXPECT_TRUE(parse_json(nested(200'000)).is_discarded());
}

TEST(JsonText, WholeNumbersOnly) {
  EXPECT_EQ(whole_number<std::int64_t>(json::parse("-3")), -3);
  EXPECT_EQ(whole_number<std::uint64_t>(json::parse("18446744073709551615")),
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(whole_number<int>(json::parse("-2147483648")), std::numeric_limits<int>::min());
  for (const char* text : {"1.0", "1.5", "1e300", "true", "\"1\"", "null", "[1]", "2147483648", "-2147483649",
                           "4294967296", "18446744073709551615"}) {
    EXPECT_THROW(whole_number<int>(json::parse(text)), json::type_error) << text;
  }
  EXPECT_THROW(whole_number<std::uint64_t>(json::parse("-1")), json::type_error);
  EXPECT_THROW(whole_number<std::int64_t>(json::parse("9223372036854775808")), json::type_error);
}

}  // namespace
}  // namespace paceline
