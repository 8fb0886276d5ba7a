#pragma once

#include <cstdint>
#include <functional>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace paceline {

/// The clocks of a recorder. Spans are measured in ticks: of the CPU's time stamp counter where that runs at a
/// constant rate, else nanoseconds of CLOCK_MONOTONIC. Each reading is a function so that a test can step the clocks.
struct TraceClock {
  bool time_stamp_counter = false;            ///< read the counter inline, `tick_source` is not used
  double ticks_per_second = 1e9;              ///< at the start; readers refine it from the file's clock records
  std::function<std::uint64_t()> tick_source;
  std::function<std::int64_t()> wall_ns;      ///< Unix time
  std::function<std::int64_t()> monotonic_ns;

  /// This machine's clocks; measures the counter's rate for two milliseconds.
  static TraceClock system();

  std::uint64_t ticks() const {
#if defined(__x86_64__)
    if (time_stamp_counter) [[likely]] return __rdtsc();
#endif
    return tick_source();
  }
};

}  // namespace paceline
