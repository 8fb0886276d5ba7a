#include "paceline/trace/trace_clock.h"

#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace paceline {
namespace {

std::int64_t read_clock(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::int64_t read_monotonic() { return read_clock(CLOCK_MONOTONIC); }
std::int64_t read_wall() { return read_clock(CLOCK_REALTIME); }

#if defined(__x86_64__)
bool has_invariant_counter() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1U << 8)) != 0;
}

struct Reading {
  std::uint64_t ticks;
  std::int64_t nanoseconds;
};

// Of a few tries the one whose two counter readings lie closest together: the least disturbed one.
Reading read_both() {
  Reading best{};
  std::uint64_t shortest = ~0ULL;
  for (int i = 0; i < 5; ++i) {
    const std::uint64_t before = __rdtsc();
    const std::int64_t nanoseconds = read_monotonic();
    const std::uint64_t after = __rdtsc();
    if (after - before < shortest) {
      shortest = after - before;
      best = {before + (after - before) / 2, nanoseconds};
    }
  }
  return best;
}

double measure_counter_rate() {
  const Reading first = read_both();
  while (read_monotonic() - first.nanoseconds < 2'000'000) {
  }
  const Reading last = read_both();
  return static_cast<double>(last.ticks - first.ticks) * 1e9 /
         static_cast<double>(last.nanoseconds - first.nanoseconds);
}
#endif

}  // namespace

TraceClock TraceClock::system() {
  TraceClock clock;
  clock.tick_source = [] { return static_cast<std::uint64_t>(read_monotonic()); };
  clock.wall_ns = read_wall;
  clock.monotonic_ns = read_monotonic;
#if defined(__x86_64__)
  static const double counter_rate = has_invariant_counter() ? measure_counter_rate() : 0;
  if (counter_rate > 0) {
    clock.time_stamp_counter = true;
    clock.ticks_per_second = counter_rate;
  }
#endif
  return clock;
}

}  // namespace paceline
