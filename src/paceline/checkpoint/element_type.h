#pragma once

#include <cstdint>
#include <string_view>

namespace paceline {

/// The element types of the safetensors format (reference implementation 0.8.0).
enum class ElementType {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

/// "F32", as headers write it.
std::string_view element_type_name(ElementType type);
/// Sets `type` and returns true, or returns false for a name that the format does not know (case counts).
bool parse_element_type(std::string_view name, ElementType& type);
/// Size of one element in bits (the packed 4- and 6-bit types have no whole bytes).
std::int64_t element_bits(ElementType type);
/// Index of the first element that is infinite or not a number among `count` contiguous ones, or -1.
/// Only f16, bf16, f32 and f64 are looked at; other types always give -1.
std::int64_t first_non_finite(ElementType type, const void* values, std::int64_t count);

}  // namespace paceline
