#include "paceline/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/base/error.h"
#include "synthetic_trace.h"

namespace paceline {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::filesystem::path& path) {
  try {
    read_trace_file(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TraceHeader full_header() {
  TraceHeader header = test_header(2, 4);
  header.links = {{*TraceId::parse("5b8aa5a2d2c872e8321cf37308d69df2"), *SpanId::parse("051581bf3cb55c13"), "data"}};
  header.coordinate = {{"dp", 0}, {"pp", 1}, {"tp", 0}};
  header.names = {"step", "forward"};
  header.actions = {"load", "forward m0 c0"};
  header.operations = {"layers.0.attention"};
  header.time_stamp_counter = true;
  header.ticks_per_second = 2.6e9;
  header.start_ticks = ~0ULL - 5;
  header.start_wall_ns = 1'700'000'000'123'456'789;
  header.start_monotonic_ns = 42;
  return header;
}

const std::vector<TraceRecord> some_records = {
    {10, 5, 7, 1, 0, 1, RecordKind::span, TraceLane::compute},
    {20, 0, 7, no_action, no_operation, 0, RecordKind::instant, TraceLane::host},
    {30, 40, 8, 3, no_operation, 1, RecordKind::span, TraceLane::communication},
};

std::string bytes_of(const TraceHeader& header, const std::vector<TraceRecord>& records) {
  std::string bytes = write_header(header);
  for (const TraceRecord& record : records) append_block(bytes, &record, 1);
  return bytes;
}

TEST(TraceFile, RoundTrip) {
  const TestFolder folder;
  write_bytes(folder / "a.trace", bytes_of(full_header(), some_records));
  const TraceFile file = read_trace_file(folder / "a.trace");
  EXPECT_EQ(file.records, some_records);
  EXPECT_TRUE(file.notices.empty());
  EXPECT_EQ(file.header.program_version, "0.1.0");
  EXPECT_EQ(file.header.run_id, "test-run");
  EXPECT_EQ(file.header.trace_id.hex(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(file.header.root_span_id.hex(), "b7ad6b7169203331");
  EXPECT_EQ(file.header.links, full_header().links);
  EXPECT_EQ(file.header.rank, 2);
  EXPECT_EQ(file.header.world_size, 4);
  EXPECT_EQ(file.header.coordinate, full_header().coordinate);
  EXPECT_EQ(file.header.names, full_header().names);
  EXPECT_EQ(file.header.actions, full_header().actions);
  EXPECT_EQ(file.header.operations, full_header().operations);
  EXPECT_TRUE(file.header.time_stamp_counter);
  EXPECT_EQ(file.header.ticks_per_second, 2.6e9);
  EXPECT_EQ(file.header.start_ticks, ~0ULL - 5);
  EXPECT_EQ(file.header.start_wall_ns, 1'700'000'000'123'456'789);
  EXPECT_EQ(file.header.start_monotonic_ns, 42);
}

// Cut at every byte: either the header is named as cut, or what was whole comes back.
TEST(TraceFile, ATornTailIsDroppedWithANotice) {
  const TestFolder folder;
  const std::string header = write_header(full_header());
  const std::string bytes = bytes_of(full_header(), some_records);
  constexpr std::size_t block = 16 + 32;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(folder / "torn.trace", bytes.substr(0, size));
    if (size == 0) {
      EXPECT_THAT(error_of(folder / "torn.trace"), HasSubstr("torn.trace: empty"));
    } else if (size < header.size()) {
      EXPECT_THAT(error_of(folder / "torn.trace"), HasSubstr("torn.trace: not a trace file, or cut inside its header"));
    } else {
      const TraceFile file = read_trace_file(folder / "torn.trace");
      const std::size_t rest = size - header.size();
      ASSERT_EQ(file.records.size(), rest / block) << size;
      ASSERT_EQ(file.notices.size(), rest % block == 0 ? 0u : 1u) << size;
      if (rest % block != 0) {
        EXPECT_THAT(file.notices[0],
                    HasSubstr(fmt::format("{} bytes after byte {}", rest % block, size - rest % block)));
      }
    }
  }
}

// Each byte of the blocks flipped: never accepted, never a crash, always the file's name.
TEST(TraceFile, ADamagedByteIsFound) {
  const TestFolder folder;
  const std::string header = write_header(full_header());
  const std::string bytes = bytes_of(full_header(), some_records);
  for (std::size_t i = header.size(); i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    write_bytes(folder / "bad.trace", damaged);
    const std::size_t in_block = (i - header.size()) % 48;
    const std::string error = error_of(folder / "bad.trace");
    // A damaged count can make the block look longer than the file, which is what a torn tail looks like.
    if (error == "no error") {
      EXPECT_TRUE(in_block >= 4 && in_block < 8) << i;
      EXPECT_EQ(read_trace_file(folder / "bad.trace").notices.size(), 1u);
    } else {
      EXPECT_THAT(error, HasSubstr("bad.trace: damaged"));
      EXPECT_THAT(error, HasSubstr(fmt::format("byte {}", i - in_block)));
    }
  }
}

TEST(TraceFile, HostileBytesAreOneClearError) {
  const TestFolder folder;
  const auto error_for = [&](const std::string& bytes) {
    write_bytes(folder / "x.trace", bytes);
    return error_of(folder / "x.trace");
  };
  EXPECT_THAT(error_of(folder / "missing.trace"), HasSubstr("missing.trace: cannot be read"));
  EXPECT_THAT(error_for("hello\n"), HasSubstr("x.trace: not a trace file"));
  EXPECT_THAT(error_for("{}\n"), HasSubstr("not a trace file"));
  EXPECT_THAT(error_for("[1,2]\n"), HasSubstr("not a trace file"));
  EXPECT_THAT(error_for(std::string(17 << 20, 'a')), HasSubstr("not a trace file"));
  EXPECT_THAT(error_for(std::string(100'000, '[') + "\n"), HasSubstr("not a trace file"));

  std::string header = write_header(full_header());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = header;
    text.replace(text.find(from), from.size(), to);
    return error_for(text);
  };
  EXPECT_THAT(changed("\"schema_version\":1", "\"schema_version\":2"), HasSubstr("trace schema version 2"));
  EXPECT_THAT(changed("\"rank\":2", "\"rank\":4"), HasSubstr("rank 4 of 4"));
  for (const char* rank : {"\"2\"", "2.5", "1e300", "true", "4294967298"}) {
    EXPECT_THAT(changed("\"rank\":2", fmt::format("\"rank\":{}", rank)), HasSubstr("\"rank\"")) << rank;
  }
  EXPECT_THAT(changed("\"pp\":1", "\"pp\":4294967297"), HasSubstr("\"pp\""));
  const std::string nested = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(changed("\"links\":[", "\"links\":[" + nested + ","), HasSubstr("not a trace file"));
  EXPECT_THAT(changed("0af7651916cd43dd8448eb211c80319c", "CvdlGRbNQ92ESOshHIAxnA=="), HasSubstr("\"trace_id\""));
  EXPECT_THAT(changed("2600000000.0", "0"), HasSubstr("ticks a second"));

  // Records that pass their checksum and still cannot be: a name, a kind and a lane that do not exist.
  TraceRecord record = some_records[0];
  record.name = 2;
  EXPECT_THAT(error_for(bytes_of(full_header(), {record})), HasSubstr("holds a record that cannot be"));
  record = some_records[0];
  record.kind = static_cast<RecordKind>(9);
  EXPECT_THAT(error_for(bytes_of(full_header(), {record})), HasSubstr("holds a record that cannot be"));
  record = some_records[0];
  record.lane = static_cast<TraceLane>(3);
  EXPECT_THAT(error_for(bytes_of(full_header(), {record})), HasSubstr("holds a record that cannot be"));
  record = some_records[0];
  record.duration = ~0ULL;
  EXPECT_THAT(error_for(bytes_of(full_header(), {record})), HasSubstr("holds a record that cannot be"));
}

TEST(NameTable, InternsEachTextOnce) {
  NameTable table;
  EXPECT_EQ(table.intern("step"), step_name);
  const NameId forward = table.intern("forward");
  EXPECT_EQ(forward, 1);
  EXPECT_EQ(table.intern("backward"), 2);
  EXPECT_EQ(table.intern("forward"), forward);
  EXPECT_EQ(table.names(), (std::vector<std::string>{"step", "forward", "backward"}));
}

// Names of all kinds come back as they went in; what is not UTF-8 becomes U+FFFD and breaks nothing.
TEST(TraceFile, NamesThatBreakJson) {
  const TestFolder folder;
  TraceHeader header = test_header();
  header.names = {"step", "{\"device\": \"cpu\"}(12): run", "C:\\tmp\\new", "\x01", "\x7f", "\u2028",
                  std::string(4000, 'n'), "", "new\nline"};
  write_bytes(folder / "a.trace", write_header(header));
  EXPECT_EQ(read_trace_file(folder / "a.trace").header.names, header.names);
  header.names = {"step", "\xed\xa0\x80", "a\xff"};
  write_bytes(folder / "a.trace", write_header(header));
  EXPECT_EQ(read_trace_file(folder / "a.trace").header.names,
            (std::vector<std::string>{"step", "\ufffd\ufffd\ufffd", "a\ufffd"}));
}

}  // namespace
}  // namespace paceline
