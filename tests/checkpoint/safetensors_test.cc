#include "paceline/checkpoint/safetensors.h"

#include "paceline/base/error.h"
#include "temporary_folder.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  std::uint64_t size = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &size, 8);
  return file + header + data;
}

struct Case {
  std::string header;
  std::size_t data_bytes;
};

class SafetensorsFiles : public testing::Test {
 protected:
  SafetensorsFile open(const Case& file) {
    write_file(folder_ / "x.safetensors", file_of(file.header, std::string(file.data_bytes, '\1')));
    return SafetensorsFile(folder_ / "x.safetensors");
  }
  std::string refusal(const Case& file) {
    return error_of([&] { open(file); });
  }
  std::string refusal_of_bytes(const std::string& bytes) {
    write_file(folder_ / "x.safetensors", bytes);
    return error_of([&] { SafetensorsFile(folder_ / "x.safetensors"); });
  }

  TemporaryFolder folder_;
};

TEST_F(SafetensorsFiles, AcceptsWhatTheReferenceAccepts) {
  EXPECT_TRUE(open({"{}", 0}).tensors().empty());
  EXPECT_EQ(open({R"({"__metadata__":{"key":"value"}})", 0}).metadata().at("key"), "value");
  EXPECT_EQ(open({R"({"__metadata__":{},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4}).tensors().size(),
            1U);
  EXPECT_EQ(open({R"({"__metadata__":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4}).tensors().size(),
            1U);
  const std::string empties = R"({"e":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},)"
                              R"("f":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                              R"("g":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                              R"("h":{"dtype":"F32","shape":[3,0],"data_offsets":[4,4]},)"
                              R"("i":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  EXPECT_EQ(open({empties, 8}).tensors().size(), 5U);
  const SafetensorsFile scalar = open({R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4});
  EXPECT_TRUE(scalar.find("s")->shape.empty());
  EXPECT_EQ(scalar.bytes(*scalar.find("s")).size(), 4U);
  const SafetensorsFile unordered = open({R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
                                          R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                          6});
  EXPECT_EQ(unordered.tensors()[0].name, "a");
  EXPECT_EQ(unordered.tensors()[1].begin, 4U);
  EXPECT_NE(open({R"({"a\u002eb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1}).find("a.b"), nullptr);
  for (const char* type : {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"}) {
    EXPECT_EQ(
        open({fmt::format(R"({{"a":{{"dtype":"{}","shape":[3],"data_offsets":[0,3]}}}})", type), 3}).tensors().size(),
        1U);
  }
  EXPECT_EQ(open({R"({"a":{"dtype":"U16","shape":[3],"data_offsets":[0,6]}})", 6}).tensors()[0].type, ElementType::u16);
  EXPECT_EQ(open({R"({"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", 8}).tensors()[0].type, ElementType::c64);
  EXPECT_EQ(open({R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2}).tensors()[0].type, ElementType::f4);
  EXPECT_EQ(open({R"(  {"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )", 1}).tensors().size(), 1U);
  // The reference reads past fields that it does not know, nested ones too.
  EXPECT_EQ(open({R"({"a":{"new":{"x":[1,{"y":null}]},"dtype":"U8","shape":[1],"old":-1.5,"data_offsets":[0,1]}})", 1})
                .tensors()[0]
                .shape,
            (std::vector<std::int64_t>{1}));
}

TEST_F(SafetensorsFiles, RefusesMalformedHeadersNamingFileAndTensor) {
  const std::vector<std::pair<Case, std::string>> cases = {
      {{"", 0}, "not valid JSON"},
      {{R"({},"__metadata__":{})", 0}, "not valid JSON"},
      {{"[]", 0}, "an array"},
      {{"null", 0}, "null"},
      {{R"({"__metadata__":{"step":3}})", 0}, "'step' is the number 3"},
      {{R"({"__metadata__":{"x":{}}})", 0}, "'x' is an object"},
      {{R"({"__metadata__":{"x":null}})", 0}, "'x' is null"},
      {{R"({"__metadata__":[]})", 0}, "metadata is an array"},
      {{R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})", 4}, "tensor 'a' has the unknown dtype 'f32'"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
        2},
       "names 'a' twice"},
      {{R"({"__metadata__":{},"__metadata__":{}})", 0}, "twice"},
      {{R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1}, "tensor 'a' gives 'dtype' twice"},
      {{std::string(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})") + std::string(3, '\0'), 1}, "NUL"},
      {{"\xEF\xBB\xBF{}", 0}, "byte-order mark"},
      {{R"({"a":{"dtype":"U8","shape":[1]}})", 1}, "tensor 'a' has no 'data_offsets'"},
      {{R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1}, "tensor 'a' has no 'shape'"},
      {{R"({"a":{"new":{},"shape":[1],"data_offsets":[0,1]}})", 1}, "tensor 'a' has no 'dtype'"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1}, "1 data offsets instead of 2"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", 1}, "3 data offsets instead of 2"},
      {{R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1}, "tensor 'a': the number -1"},
      {{R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1}, "tensor 'a': the number 1.0"},
      {{R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1}, "tensor 'a': the string '1'"},
      {{R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1}, "tensor 'a': an array"},
      {{R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1}, "tensor 'a': the number 1"},
      {{R"({"a":[1]})", 1}, "tensor 'a' is an array"},
      {{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4}, "needs 8 bytes, but its offsets span 4"},
      {{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 4}, "needs 4 bytes, but its offsets span 8"},
      {{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4},
       "tensor 'a' ends at byte 8 of the data, but the file holds only 4"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3}, "2 bytes after the last tensor"},
      {{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
        3},
       "tensor 'b' begins at byte 1, inside tensor 'a' that ends at 2"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
        3},
       "1 bytes before tensor 'b' belong to no tensor"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1}, "ends at byte 0 before it begins at 1"},
      {{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
       "no size in whole bytes below 2^64"},
      {{R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0},
       "no size in whole bytes below 2^64"},
      {{R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0]}})", 0}, "too large"},
      {{R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}})", 0}, "tensor 'a'"},
      {{R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2}, "no size in whole bytes"},
      {{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})", 1}, "its offsets span"},
  };
  for (const auto& [file, message] : cases) {
    EXPECT_THAT(refusal(file), AllOf(HasSubstr("x.safetensors"), HasSubstr(message))) << file.header;
  }
}

TEST_F(SafetensorsFiles, ForeignNamesStayOnOneLine) {
  const std::string message = refusal({R"({"a\n\u001b[31m":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1});
  EXPECT_THAT(message, HasSubstr("tensor 'a??[31m'"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(refusal({R"({")" + std::string(100'000, 'x') + R"(":1})", 0}).size(), 1000U);
}

TEST_F(SafetensorsFiles, RefusesBrokenContainers) {
  EXPECT_THAT(refusal_of_bytes(""), HasSubstr("0 bytes, too short"));
  EXPECT_THAT(refusal_of_bytes("\1\0\0"), HasSubstr("too short"));
  std::string huge(16, '\0');
  const std::uint64_t over = 100'000'001;
  std::memcpy(huge.data(), &over, 8);
  EXPECT_THAT(refusal_of_bytes(huge), HasSubstr("more than the format's 100,000,000"));
  const std::uint64_t wrap = 0xFFFFFFFFFFFFFFF8ULL;
  std::memcpy(huge.data(), &wrap, 8);
  EXPECT_THAT(refusal_of_bytes(huge), HasSubstr("more than the format's"));
  const std::uint64_t beyond = 9;
  std::memcpy(huge.data(), &beyond, 8);
  EXPECT_THAT(refusal_of_bytes(huge), HasSubstr("says it is 9 bytes long, but only 8 follow"));
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder_ / "missing"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder_.path()); }), HasSubstr("not a regular file"));
}

SafetensorsEntry entry(const std::string& name, ElementType type, std::vector<std::int64_t> shape,
                       const std::string& bytes) {
  return {name, type, std::move(shape), [&bytes] { return std::as_bytes(std::span(bytes)); }};
}

TEST_F(SafetensorsFiles, WritesAlignedFilesThatReadBack) {
  const std::string three(3, '\7');
  const std::string eight("abcdefgh");
  const std::string nothing;
  const auto path = folder_ / "w.safetensors";
  const WrittenSafetensors written =
      write_safetensors(path, {{"step", "7"}},
                        {entry("bytes", ElementType::u8, {3}, three), entry("wide", ElementType::f64, {}, eight),
                         entry("none", ElementType::f32, {2, 0}, nothing)});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "7"}}));
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[0].name, "wide");
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("bytes")).data(), three.data(), 3), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("wide")).data(), eight.data(), 8), 0);
  EXPECT_TRUE(file.bytes(*file.find("none")).empty());
  EXPECT_EQ(written.bytes, std::filesystem::file_size(path));
  std::uint64_t header = 0;
  std::memcpy(&header, read_file(path).data(), 8);
  EXPECT_EQ(header % 8, 0U);
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"w.safetensors"});
}

TEST_F(SafetensorsFiles, AFailingWriterLeavesTheOldFile) {
  const std::string old = "the file that was there";
  write_file(folder_ / "w.safetensors", old);
  const SafetensorsEntry bad{"a", ElementType::u8, {1}, []() -> std::span<const std::byte> { fail("no content"); }};
  EXPECT_EQ(error_of([&] { write_safetensors(folder_ / "w.safetensors", {}, {bad}); }), "no content");
  EXPECT_EQ(read_file(folder_ / "w.safetensors"), old);
  EXPECT_EQ(names_in(folder_.path()).size(), 1U);
}

/// A file-size limit makes a write fail in its middle, as a full disk does.
TEST_F(SafetensorsFiles, AFullDiskIsOneErrorThatLeavesNothing) {
  const auto path = folder_ / "w.safetensors";
  const auto report = folder_ / "report";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string large(1'000'000, 'x');
    const std::string message =
        error_of([&] { write_safetensors(path, {}, {entry("a", ElementType::u8, {1'000'000}, large)}); });
    write_file(report, message);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_THAT(read_file(report),
              AllOf(HasSubstr("cannot write"), HasSubstr("w.safetensors"), HasSubstr("File too large")));
  EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"report"});
}

}  // namespace
}  // namespace paceline
