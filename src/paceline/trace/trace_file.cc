#include "paceline/trace/trace_file.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"

namespace paceline {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

constexpr std::string_view schema_name = "paceline.trace";
constexpr std::size_t largest_header = std::size_t{16} << 20;  // bytes
constexpr std::uint32_t largest_block = 1U << 20;              // records
constexpr std::int64_t latest_wall_ns = 4'000'000'000'000'000'000;  // the year 2096

struct BlockHeader {
  char magic[4] = {'P', 'L', 'T', 'B'};
  std::uint32_t count = 0;
  std::uint64_t checksum = 0;  // XXH3 of the records, seeded with their number
};
static_assert(sizeof(BlockHeader) == 16);

std::uint64_t checksum_of(const void* records, std::size_t count) {
  return XXH3_64bits_withSeed(records, count * sizeof(TraceRecord), count);
}

/// A key of the header, of the right type, or one clear error.
template <typename T>
T get(const json& object, const char* key, const std::filesystem::path& path) {
  try {
    const json& value = object.at(key);
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      return whole_number<T>(value);
    } else {
      return value.get<T>();
    }
  } catch (const json::exception&) {
    fail("{}: the trace's header has no valid \"{}\"", path.string(), key);
  }
}

template <typename Id>
Id get_id(const json& object, const char* key, const std::filesystem::path& path) {
  const auto id = Id::parse(get<std::string>(object, key, path));
  if (!id) fail("{}: the trace's header has no valid \"{}\"", path.string(), key);
  return *id;
}

TraceHeader read_header(const std::string& line, const std::filesystem::path& path) {
  const json object = parse_json(line);
  if (!object.is_object() || object.value("schema", json()) != json(schema_name)) {
    fail("{}: not a trace file", path.string());
  }
  const int version = get<int>(object, "schema_version", path);
  if (version != trace_schema_version) {
    fail("{}: trace schema version {}, this program reads version {}", path.string(), version, trace_schema_version);
  }
  TraceHeader header;
  header.program_version = get<std::string>(object, "program_version", path);
  header.run_id = get<std::string>(object, "run_id", path);
  header.trace_id = get_id<TraceId>(object, "trace_id", path);
  header.root_span_id = get_id<SpanId>(object, "root_span_id", path);
  for (const json& link : get<std::vector<json>>(object, "links", path)) {
    header.links.push_back({get_id<TraceId>(link, "trace_id", path), get_id<SpanId>(link, "span_id", path),
                            get<std::string>(link, "name", path)});
  }
  header.rank = get<int>(object, "rank", path);
  header.world_size = get<int>(object, "world_size", path);
  const json coordinate = get<json::object_t>(object, "coordinate", path);
  for (const auto& [degree, place] : coordinate.items()) {
    header.coordinate[degree] = get<int>(coordinate, degree.c_str(), path);
  }
  header.names = get<std::vector<std::string>>(object, "names", path);
  header.actions = get<std::vector<std::string>>(object, "actions", path);
  header.operations = get<std::vector<std::string>>(object, "operations", path);
  const json clock = get<json>(object, "clock", path);
  header.time_stamp_counter = get<bool>(clock, "time_stamp_counter", path);
  header.ticks_per_second = get<double>(clock, "ticks_per_second", path);
  header.start_ticks = get<std::uint64_t>(clock, "start_ticks", path);
  header.start_wall_ns = get<std::int64_t>(clock, "start_wall_ns", path);
  header.start_monotonic_ns = get<std::int64_t>(clock, "start_monotonic_ns", path);
  if (header.rank < 0 || header.rank >= header.world_size) {
    fail("{}: the trace's header says rank {} of {}", path.string(), header.rank, header.world_size);
  }
  if (header.names.empty() || header.names.size() > 65536) {
    fail("{}: the trace's header has {} names, 1 to 65536 are possible", path.string(), header.names.size());
  }
  if (header.start_wall_ns < 0 || header.start_wall_ns > latest_wall_ns) {
    fail("{}: the trace's header says that it started {} ns after 1970", path.string(), header.start_wall_ns);
  }
  if (!(header.ticks_per_second >= 1 && header.ticks_per_second <= 1e12)) {
    fail("{}: the trace's header says {} ticks a second", path.string(), header.ticks_per_second);
  }
  return header;
}

bool is_valid(const TraceRecord& record, const TraceHeader& header) {
  if (static_cast<std::size_t>(record.lane) >= lane_names.size()) return false;
  if (record.kind == RecordKind::clock) return record.duration <= static_cast<std::uint64_t>(latest_wall_ns);
  return record.kind < RecordKind::clock && record.name < header.names.size() && record.operation >= no_operation &&
         (record.kind != RecordKind::span || record.start + record.duration >= record.start);
}

}  // namespace

NameId NameTable::intern(std::string_view name) {
  if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
  PACELINE_CHECK(names_.size() < 65536);
  const auto id = static_cast<NameId>(names_.size());
  names_.emplace_back(name);
  ids_.emplace(name, id);
  return id;
}

std::string write_header(const TraceHeader& header) {
  json links = json::array();
  for (const TraceLink& link : header.links) {
    links.push_back({{"trace_id", link.trace_id.hex()}, {"span_id", link.span_id.hex()}, {"name", link.name}});
  }
  const json object = {
      {"schema", schema_name},
      {"schema_version", trace_schema_version},
      {"program_version", header.program_version},
      {"run_id", header.run_id},
      {"trace_id", header.trace_id.hex()},
      {"root_span_id", header.root_span_id.hex()},
      {"links", links},
      {"rank", header.rank},
      {"world_size", header.world_size},
      {"coordinate", header.coordinate},
      {"clock",
       {{"time_stamp_counter", header.time_stamp_counter},
        {"ticks_per_second", header.ticks_per_second},
        {"start_ticks", header.start_ticks},
        {"start_wall_ns", header.start_wall_ns},
        {"start_monotonic_ns", header.start_monotonic_ns}}},
      {"lanes", lane_names},
      {"names", header.names},
      {"actions", header.actions},
      {"operations", header.operations},
  };
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

void append_block(std::string& bytes, const TraceRecord* records, std::size_t count) {
  BlockHeader block;
  block.count = static_cast<std::uint32_t>(count);
  block.checksum = checksum_of(records, count);
  bytes.append(reinterpret_cast<const char*>(&block), sizeof block);
  bytes.append(reinterpret_cast<const char*>(records), count * sizeof(TraceRecord));
}

TraceFile read_trace_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (!in || error) fail("{}: cannot be read", path.string());
  if (size == 0) fail("{}: empty, its rank ended before it could write", path.string());

  TraceFile file;
  file.path = path;
  std::string line;
  for (char c = 0; line.size() <= largest_header && in.get(c) && c != '\n';) line += c;
  if (!in) fail("{}: not a trace file, or cut inside its header", path.string());
  if (line.size() > largest_header) fail("{}: not a trace file", path.string());
  file.header = read_header(line, path);

  std::uint64_t position = line.size() + 1;
  std::vector<TraceRecord> block;
  while (position < size) {
    BlockHeader head;
    const std::uint64_t left = size - position;
    const std::uint64_t head_bytes = std::min<std::uint64_t>(left, sizeof head);
    in.read(reinterpret_cast<char*>(&head), static_cast<std::streamsize>(head_bytes));
    if (!in) fail("{}: cannot be read at byte {}", path.string(), position);
    const std::size_t magic_bytes = std::min<std::uint64_t>(head_bytes, sizeof head.magic);
    if (std::memcmp(head.magic, BlockHeader{}.magic, magic_bytes) != 0 ||
        (head_bytes >= 8 && (head.count == 0 || head.count > largest_block))) {
      fail("{}: damaged at byte {}: no block of records starts there", path.string(), position);
    }
    if (left < sizeof head || left - sizeof head < head.count * sizeof(TraceRecord)) {
      file.notices.push_back(fmt::format("{}: cut inside its last block, {} bytes after byte {} are left out",
                                         path.string(), left, position));
      break;
    }
    block.resize(head.count);
    in.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(head.count * sizeof(TraceRecord)));
    if (!in) fail("{}: cannot be read at byte {}", path.string(), position);
    if (checksum_of(block.data(), block.size()) != head.checksum) {
      fail("{}: damaged: the block at byte {} does not match its checksum", path.string(), position);
    }
    for (const TraceRecord& record : block) {
      if (!is_valid(record, file.header)) {
        fail("{}: the block at byte {} holds a record that cannot be", path.string(), position);
      }
      (record.kind == RecordKind::clock ? file.clocks : file.records).push_back(record);
    }
    position += sizeof head + head.count * sizeof(TraceRecord);
  }
  return file;
}

}  // namespace paceline
