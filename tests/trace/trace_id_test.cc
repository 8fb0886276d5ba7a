#include "paceline/trace/trace_id.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace paceline {
namespace {

const std::string valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

GetEnvironment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

TEST(TraceId, HexRoundTrip) {
  const auto id = TraceId::parse("0af7651916cd43dd8448eb211c80319c");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->bytes[0], 0x0a);
  EXPECT_EQ(id->bytes[15], 0x9c);
  EXPECT_EQ(id->hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_FALSE(TraceId::parse("0AF7651916cd43dd8448eb211c80319c"));
  EXPECT_FALSE(TraceId::parse("W4qlotLIcugyHPNzCNad8g=="));
  EXPECT_FALSE(SpanId::parse("b7ad6b716920333"));
  EXPECT_FALSE(SpanId::parse("b7ad6b716920333g"));
}

TEST(TraceId, NewIdsDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(seen.insert(new_trace_id().hex()).second);
    EXPECT_TRUE(seen.insert(new_span_id().hex()).second);
  }
}

TEST(TraceParent, RoundTrip) {
  const auto parent = parse_traceparent(valid);
  ASSERT_TRUE(parent);
  EXPECT_EQ(parent->trace_id.hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(parent->span_id.hex(), "b7ad6b7169203331");
  EXPECT_EQ(parent->flags, 1);
  EXPECT_EQ(format_traceparent(*parent), valid);
  EXPECT_EQ(parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03")->flags, 3);
}

TEST(TraceParent, WhatIsInvalidIsIgnored) {
  for (const char* text : {
           "",
           "00",
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",       // upper case
           "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",        // 31 digits
           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",       // version ff
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",       // zero trace id
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",       // zero span id
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g",       // flags
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",  // version 00 has four fields
           "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
           "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
       }) {
    EXPECT_FALSE(parse_traceparent(text)) << text;
  }
  EXPECT_TRUE(parse_traceparent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"));
}

TEST(TraceContext, JoinsTheTraceOfTheEnvironment) {
  std::vector<std::string> notices;
  const auto context = trace_context_from_environment(environment({{"TRACEPARENT", valid}}), {},
                                                      [&](const std::string& line) { notices.push_back(line); });
  EXPECT_EQ(context.trace_id.hex(), "0af7651916cd43dd8448eb211c80319c");
  ASSERT_TRUE(context.parent);
  EXPECT_EQ(context.parent->hex(), "b7ad6b7169203331");
  EXPECT_NE(context.span_id, *context.parent);
  EXPECT_FALSE(context.span_id.is_zero());
  EXPECT_TRUE(notices.empty());

  // A rank started with this command's context lies under this command's span.
  const auto rank = trace_context_from_environment(
      environment({{"TRACEPARENT", format_traceparent(context.for_child())}}));
  EXPECT_EQ(rank.trace_id, context.trace_id);
  EXPECT_EQ(*rank.parent, context.span_id);
}

TEST(TraceContext, OtherwiseStartsOneLinkedToItsInput) {
  const TraceLink input{new_trace_id(), new_span_id(), "data version 5c1f"};
  const auto context = trace_context_from_environment(environment({}), {input});
  EXPECT_FALSE(context.trace_id.is_zero());
  EXPECT_NE(context.trace_id, input.trace_id);
  EXPECT_FALSE(context.parent);
  EXPECT_EQ(context.links, std::vector<TraceLink>{input});
}

TEST(TraceContext, AnInvalidParentIsSaidOnceAndStartsANewTrace) {
  std::vector<std::string> notices;
  const std::string bad = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
  const auto context = trace_context_from_environment(environment({{"TRACEPARENT", bad}}), {},
                                                      [&](const std::string& line) { notices.push_back(line); });
  EXPECT_NE(context.trace_id.hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_FALSE(context.parent);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("TRACEPARENT"), std::string::npos);
  EXPECT_NE(notices[0].find(bad), std::string::npos);
  trace_context_from_environment(environment({{"TRACEPARENT", "00\n\x1B[31m"}}), {},
                                 [&](const std::string& line) { notices.push_back(line); });
  EXPECT_NE(notices.back().find("\"00??[31m\""), std::string::npos);
}

}  // namespace
}  // namespace paceline
