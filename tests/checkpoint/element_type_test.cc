#include "paceline/checkpoint/element_type.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace paceline {
namespace {

TEST(ElementType, NamesRoundTrip) {
  for (const char* name : {"BOOL", "F4", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16", "BF16",
                           "I32", "U32", "F32", "C64", "F64", "I64", "U64"}) {
    ElementType type{};
    ASSERT_TRUE(parse_element_type(name, type)) << name;
    EXPECT_EQ(element_type_name(type), name);
  }
  ElementType type{};
  EXPECT_FALSE(parse_element_type("f32", type));
  EXPECT_FALSE(parse_element_type("", type));
  EXPECT_EQ(element_bits(ElementType::c64), 64);
  EXPECT_EQ(element_bits(ElementType::f6_e2m3), 6);
}

TEST(ElementType, FindsTheFirstNonFiniteValue) {
  std::vector<float> values(10'000, std::numeric_limits<float>::max());
  values[3] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(first_non_finite(ElementType::f32, values.data(), 10'000), -1);
  values[9'000] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_non_finite(ElementType::f32, values.data(), 10'000), 9'000);
  values[8'999] = std::nanf("");
  EXPECT_EQ(first_non_finite(ElementType::f32, values.data(), 10'000), 8'999);
  const std::vector<double> doubles = {1.0, std::nan("")};
  EXPECT_EQ(first_non_finite(ElementType::f64, doubles.data(), 2), 1);
  const std::vector<std::uint16_t> halves = {0x7BFF, 0xFC00};  // the largest half, minus infinity
  EXPECT_EQ(first_non_finite(ElementType::f16, halves.data(), 2), 1);
  EXPECT_EQ(first_non_finite(ElementType::bf16, halves.data(), 2), -1);
  EXPECT_EQ(first_non_finite(ElementType::i64, doubles.data(), 2), -1);
}

}  // namespace
}  // namespace paceline
