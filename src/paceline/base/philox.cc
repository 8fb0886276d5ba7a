#include "paceline/base/philox.h"

#include <xxhash.h>

#include <cmath>
#include <numbers>

namespace paceline {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  constexpr std::uint32_t multiplier[2] = {0xD2511F53U, 0xCD9E8D57U};
  constexpr std::uint32_t weyl[2] = {0x9E3779B9U, 0xBB67AE85U};
  std::uint32_t key_words[2] = {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
  std::array<std::uint32_t, 4> counter = {
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = std::uint64_t{multiplier[0]} * counter[0];
    const std::uint64_t product_1 = std::uint64_t{multiplier[1]} * counter[2];
    counter = {static_cast<std::uint32_t>(product_1 >> 32) ^ counter[1] ^ key_words[0],
               static_cast<std::uint32_t>(product_1),
               static_cast<std::uint32_t>(product_0 >> 32) ^ counter[3] ^ key_words[1],
               static_cast<std::uint32_t>(product_0)};
    key_words[0] += weyl[0];
    key_words[1] += weyl[1];
  }
  return counter;
}

std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

std::uint64_t random_bits(std::uint64_t key, std::uint64_t index) {
  const auto words = philox(key, index);
  return (std::uint64_t{words[1]} << 32) | words[0];
}

double random_uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<double>(random_bits(key, index) >> 11) * 0x1.0p-53;
}

double random_normal(std::uint64_t key, std::uint64_t index) {
  const auto words = philox(key, index);
  const std::uint64_t first = ((std::uint64_t{words[1]} << 32) | words[0]) >> 11;
  const std::uint64_t second = ((std::uint64_t{words[3]} << 32) | words[2]) >> 11;
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(first) + 1.0) * 0x1.0p-53));
  return radius * std::cos(2.0 * std::numbers::pi * static_cast<double>(second) * 0x1.0p-53);
}

std::uint64_t random_permutation(std::uint64_t key, std::uint64_t size, std::uint64_t position) {
  if (size <= 1) return 0;
  int half_bits = 1;
  while (half_bits < 32 && (std::uint64_t{1} << (2 * half_bits)) < size) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t value = position;
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = philox(key, right, round)[0] & mask;
      const std::uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= size);
  return value;
}

}  // namespace paceline
