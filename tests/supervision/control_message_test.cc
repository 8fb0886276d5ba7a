#include "paceline/supervision/control_message.h"

#include <gtest/gtest.h>

#include <string>

namespace paceline {
namespace {

TEST(ControlMessage, WhatIsNotThereOrOfAnotherTypeIsTheDefault) {
  const nlohmann::json message = parse_message(R"({"type": "hello", "rank": 3, "share": 0.5, "pid": 18446744073709551615})");
  EXPECT_EQ(text_of(message, "type", 16), "hello");
  EXPECT_EQ(text_of(message, "type", 4), "hell");
  EXPECT_EQ(text_of(message, "rank", 16, "none"), "none");
  EXPECT_EQ(number_of(message, "rank", -1), 3);
  EXPECT_EQ(number_of(message, "type", -1), -1);
  EXPECT_EQ(number_of(message, "share", -1), -1);
  EXPECT_EQ(number_of(message, "pid", -1), -1);
}

TEST(ControlMessage, HostileTextIsNoMessage) {
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& text : {std::string("[1]"), std::string("{"), std::string(), nested,
                                  R"({"type":)" + nested + "}", std::string("\xFF")}) {
    const nlohmann::json message = parse_message(text);
    EXPECT_TRUE(message.is_null());
    EXPECT_EQ(text_of(message, "type", 16, "none"), "none");
    EXPECT_EQ(number_of(message, "rank", -1), -1);
  }
}

TEST(ControlMessage, IsWrittenOnOneLine) {
  EXPECT_EQ(write_message({{"text", "a\xFF"}}), "{\"text\":\"a\xEF\xBF\xBD\"}");
  EXPECT_EQ(one_line("a\nb\x1B[0m\n"), "a b [0m");
}

}  // namespace
}  // namespace paceline
