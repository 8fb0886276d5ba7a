#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace paceline {

/// Philox4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11):
/// four 32-bit words as a pure function of a 64-bit key and a 128-bit counter. A value thus depends only on what it is
/// for (seed, name, index), never on who draws it or in which order, so every layout sees the same numbers.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high = 0);

/// The key of a named stream of a seed.
std::uint64_t stream_key(std::uint64_t seed, std::string_view name);

/// 64 random bits of element `index`.
std::uint64_t random_bits(std::uint64_t key, std::uint64_t index);

/// Uniform in [0, 1), 53 bits.
double random_uniform(std::uint64_t key, std::uint64_t index);

/// Standard normal by Box and Muller, in double precision.
double random_normal(std::uint64_t key, std::uint64_t index);

/// A permutation of [0, size) as a function of its key, element by element, without a table (a Feistel network over
/// the next power of four, walked until the value falls inside). size >= 1, position < size.
std::uint64_t random_permutation(std::uint64_t key, std::uint64_t size, std::uint64_t position);

}  // namespace paceline
