#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace paceline {

/// Index into the header's table of names.
using NameId = std::uint16_t;

/// The span that encloses one whole training step on the compute lane has this name, id 0 of every table.
inline constexpr NameId step_name = 0;
inline constexpr std::uint32_t no_action = 0xffffffffU;
inline constexpr std::int32_t no_operation = -1;

/// What a rank does at the same time: one lane is recorded by one thread at a time.
enum class TraceLane : std::uint8_t { compute = 0, communication = 1, host = 2 };
inline constexpr std::array<std::string_view, 3> lane_names = {"compute", "communication", "host"};

enum class RecordKind : std::uint8_t {
  span = 0,
  instant = 1,  ///< duration is 0
  scalar = 2,   ///< `duration` holds the bits of a double
  clock = 3,    ///< a reading of all clocks: `duration` is Unix ns, `action` (low) and `operation` (high) monotonic ns
};

/// One recorded event, little endian, as it lies in memory and in the file.
struct TraceRecord {
  std::uint64_t start = 0;     ///< ticks
  std::uint64_t duration = 0;  ///< ticks
  std::uint32_t step = 0;
  std::uint32_t action = no_action;        ///< index into the rank's schedule
  std::int32_t operation = no_operation;   ///< index into the rank's operations
  NameId name = 0;
  RecordKind kind = RecordKind::span;
  TraceLane lane = TraceLane::compute;
  bool operator==(const TraceRecord&) const = default;
};
static_assert(sizeof(TraceRecord) == 32);

}  // namespace paceline
