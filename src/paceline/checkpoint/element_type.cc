#include "paceline/checkpoint/element_type.h"

#include "paceline/base/error.h"

#include <array>
#include <cstring>

namespace paceline {
namespace {

struct Row {
  ElementType type;
  std::string_view name;
  std::int64_t bits;
};

constexpr std::array rows = {
    Row{ElementType::boolean, "BOOL", 8},
    Row{ElementType::f4, "F4", 4},
    Row{ElementType::f6_e2m3, "F6_E2M3", 6},
    Row{ElementType::f6_e3m2, "F6_E3M2", 6},
    Row{ElementType::u8, "U8", 8},
    Row{ElementType::i8, "I8", 8},
    Row{ElementType::f8_e5m2, "F8_E5M2", 8},
    Row{ElementType::f8_e4m3, "F8_E4M3", 8},
    Row{ElementType::f8_e8m0, "F8_E8M0", 8},
    Row{ElementType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    Row{ElementType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    Row{ElementType::i16, "I16", 16},
    Row{ElementType::u16, "U16", 16},
    Row{ElementType::f16, "F16", 16},
    Row{ElementType::bf16, "BF16", 16},
    Row{ElementType::i32, "I32", 32},
    Row{ElementType::u32, "U32", 32},
    Row{ElementType::f32, "F32", 32},
    Row{ElementType::c64, "C64", 64},
    Row{ElementType::f64, "F64", 64},
    Row{ElementType::i64, "I64", 64},
    Row{ElementType::u64, "U64", 64},
};

const Row& row_of(ElementType type) {
  for (const Row& row : rows) {
    if (row.type == type) return row;
  }
  PACELINE_CHECK(false);
  return rows[0];
}

/// An exponent of ones means infinite or not a number in every IEEE format.
template <typename Word>
std::int64_t first_all_ones_exponent(const void* values, std::int64_t count, Word exponent) {
  const auto* bytes = static_cast<const unsigned char*>(values);
  constexpr std::int64_t block = 4096;
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t end = begin + block < count ? begin + block : count;
    bool found = false;
    for (std::int64_t i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, bytes + i * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
      found |= (word & exponent) == exponent;
    }
    if (!found) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      Word word;
      std::memcpy(&word, bytes + i * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
      if ((word & exponent) == exponent) return i;
    }
  }
  return -1;
}

}  // namespace

std::string_view element_type_name(ElementType type) { return row_of(type).name; }

bool parse_element_type(std::string_view name, ElementType& type) {
  for (const Row& row : rows) {
    if (row.name == name) {
      type = row.type;
      return true;
    }
  }
  return false;
}

std::int64_t element_bits(ElementType type) { return row_of(type).bits; }

std::int64_t first_non_finite(ElementType type, const void* values, std::int64_t count) {
  switch (type) {
    case ElementType::f16:
      return first_all_ones_exponent<std::uint16_t>(values, count, 0x7C00U);
    case ElementType::bf16:
      return first_all_ones_exponent<std::uint16_t>(values, count, 0x7F80U);
    case ElementType::f32:
      return first_all_ones_exponent<std::uint32_t>(values, count, 0x7F800000U);
    case ElementType::f64:
      return first_all_ones_exponent<std::uint64_t>(values, count, 0x7FF0000000000000ULL);
    default:
      return -1;
  }
}

}  // namespace paceline
