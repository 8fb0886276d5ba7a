#include "fuzz_target.h"

#include "paceline/trace/chrome_export.h"
#include "paceline/trace/trace_report.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace paceline {
namespace {

/// Puts the records behind the first line into a block with a right checksum, which mutations never hit.
std::string sealed(std::string_view bytes) {
  const std::size_t end = std::min(bytes.find('\n'), bytes.size());
  std::string file(bytes.substr(0, std::min(end + 1, bytes.size())));
  const std::string_view rest = bytes.substr(file.size());
  std::vector<TraceRecord> records(rest.size() / sizeof(TraceRecord));
  if (records.empty()) return file;
  std::memcpy(records.data(), rest.data(), records.size() * sizeof(TraceRecord));
  append_block(file, records.data(), records.size());
  return file;
}

}  // namespace

/// A whole file; with a first byte of 0xFF, a header and bare records. What is read is reported and exported.
void parse_foreign_bytes(std::string_view bytes) {
  const bool bare = bytes.starts_with('\xFF');
  const std::string file = bare ? sealed(bytes.substr(1)) : std::string(bytes);
  const std::filesystem::path path = input_file("rank_0.trace", file);
  RunTraces traces;
  traces.ranks.push_back(read_trace_file(path));
  export_chrome(traces, std::nullopt, path.parent_path() / "exported.json");
  build_trace_report(traces, std::nullopt);
}

std::vector<std::string> seeds() {
  TraceHeader header;
  header.program_version = "0";
  header.run_id = "seed";
  header.trace_id.bytes[0] = 1;
  header.root_span_id.bytes[0] = 1;
  header.links = {{header.trace_id, header.root_span_id, "data"}};
  header.coordinate = {{"dp", 0}};
  header.names = {"step", "forward", "loss"};
  header.actions = {"forward 0"};
  header.operations = {"linear"};
  header.start_wall_ns = 1'700'000'000'000'000'000;
  std::vector<TraceRecord> records;
  for (std::uint32_t step = 0; step < 4; ++step) {
    const std::uint64_t start = 1000 * step;
    records.push_back({.start = start, .duration = 900, .step = step, .name = step_name});
    records.push_back({.start = start + 10, .duration = 200, .step = step, .action = 0, .name = 1});
    records.push_back({.start = start + 20, .duration = 50, .step = step, .action = 0, .operation = 0, .name = 1});
    records.push_back({.start = start + 800, .duration = std::bit_cast<std::uint64_t>(2.5), .step = step, .name = 2,
                       .kind = RecordKind::scalar});
    records.push_back({.start = start + 900, .duration = static_cast<std::uint64_t>(header.start_wall_ns) + start,
                       .kind = RecordKind::clock});
  }
  const std::string head = write_header(header);
  std::string file = head;
  append_block(file, records.data(), records.size());
  const std::string bare(reinterpret_cast<const char*>(records.data()), records.size() * sizeof(TraceRecord));
  std::vector<std::string> all = {file, "\xFF" + head + bare, head};
  for (const char* key : {"schema", "links", "clock"}) {
    const std::string before = std::string(R"({"schema":"paceline.trace",")") + key + "\":";
    for (std::string& nested : deeply_nested_json(before, "}")) all.push_back(nested + "\n");
  }
  // Only behind a valid beginning is the value looked at.
  const std::string links = "\"links\":";
  const std::size_t at = head.find(links);
  const std::size_t end = head.find(']', at);
  for (const std::string& nested : deeply_nested_json("[", "]")) {
    all.push_back(head.substr(0, at + links.size()) + nested + head.substr(end + 1));
  }
  return all;
}

}  // namespace paceline
