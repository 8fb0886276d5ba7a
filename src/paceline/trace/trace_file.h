#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "paceline/trace/record.h"
#include "paceline/trace/trace_id.h"

namespace paceline {

inline constexpr int trace_schema_version = 1;

/// What a trace file says about itself: its first line, one JSON object.
struct TraceHeader {
  std::string program_version;
  std::string run_id;
  TraceId trace_id;
  SpanId root_span_id;           ///< the command's span, the same on all ranks of one attempt: it groups their files
  std::vector<TraceLink> links;  ///< spans that produced the inputs
  int rank = 0;
  int world_size = 1;
  std::map<std::string, int> coordinate;  ///< the rank's place in the layout, e.g. {"dp": 0, "pp": 1, "tp": 0}
  std::vector<std::string> names = {"step"};  ///< by NameId; see NameTable
  std::vector<std::string> actions;           ///< labels of the rank's schedule by action index, may be empty
  std::vector<std::string> operations;        ///< labels of the rank's operations by operation index, may be empty

  // Written by the recorder.
  bool time_stamp_counter = false;
  double ticks_per_second = 1e9;
  std::uint64_t start_ticks = 0;
  std::int64_t start_wall_ns = 0;       ///< Unix time at `start_ticks`
  std::int64_t start_monotonic_ns = 0;  ///< CLOCK_MONOTONIC at `start_ticks`
};

/// Collects the names of spans before the recorder starts. "step" is there from the start, with id step_name.
class NameTable {
 public:
  /// The name's id; the same text has the same id. At most 65,536 names.
  NameId intern(std::string_view name);
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_ = {"step"};
  std::map<std::string, NameId, std::less<>> ids_ = {{"step", step_name}};
};

/// One rank's trace as read back.
struct TraceFile {
  std::filesystem::path path;
  TraceHeader header;
  std::vector<TraceRecord> records;        ///< without the clock records, in the order of the file
  std::vector<TraceRecord> clocks;         ///< the clock records
  std::vector<std::string> notices;   ///< one line each: a torn tail that was dropped
};

/// The first line of a file, with its newline. Bytes that are not UTF-8 become U+FFFD.
std::string write_header(const TraceHeader& header);

/// The bytes of one block: its magic, number of records, checksum and records.
void append_block(std::string& bytes, const TraceRecord* records, std::size_t count);

/// Reads and checks a file. A tail cut in the middle of a block, as a killed process leaves it, is dropped with a
/// notice; anything else that is wrong is one error that names the file and the place.
TraceFile read_trace_file(const std::filesystem::path& path);

}  // namespace paceline
