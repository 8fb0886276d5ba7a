#include "paceline/data/document_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string gzip(const std::string& text) {
  std::string packed(text.size() + 100, '\0');
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST(DocumentReader, ListsFilesInAStableOrder) {
  const TemporaryFolder folder;
  for (const char* name : {"b/2.txt", "b/10.txt", "a.html", "c.txt.gz", "d.pdf", "b-/x.txt", "html"})
    write_file(folder / name, "x");
  const std::string root = folder.path().string();
  const auto names = [&](const std::vector<std::string>& paths) {
    std::vector<std::string> result;
    for (const auto& path : list_documents(paths, {".txt", ".html"}))
      result.push_back(path.string().substr(root.size() + 1));
    return result;
  };
  EXPECT_THAT(names({root}), ElementsAre("a.html", "b-/x.txt", "b/10.txt", "b/2.txt", "c.txt.gz"));
  EXPECT_THAT(names({root + "/d.pdf", root + "/b", root + "/b/2.txt"}), ElementsAre("d.pdf", "b/10.txt", "b/2.txt"));
  EXPECT_THAT(error_of([&] { list_documents({root + "/none"}, {".txt"}); }),
              HasSubstr("/none: no such file or folder"));
}

TEST(DocumentReader, HtmlByNamePlainOtherwise) {
  EXPECT_EQ(extract_document("a.html", "<p>one &amp; two</p><script>x</script>").text, "one & two");
  EXPECT_EQ(extract_document("a.txt", "<p>one &amp;\r\n\r\n  two").text, "<p>one &amp;\r\n\r\n  two");
  EXPECT_EQ(extract_document("a.html.gz", gzip("<p>packed</p>")).text, "packed");
}

TEST(DocumentReader, GzipMembersAndDamage) {
  const std::string two = gzip("first\n") + gzip("second\n");
  EXPECT_EQ(extract_document("a.txt.gz", two).text, "first\nsecond\n");
  std::string large;
  for (std::int64_t i = 0; i < 300000; ++i) large += std::to_string(i * 7919 % 10007) + " ";
  EXPECT_EQ(extract_document("a.txt.gz", gzip(large)).text, large);
  for (const std::string& damaged :
       {two.substr(0, two.size() - 5), std::string("no gzip"), std::string(), two + "tail"}) {
    const ExtractedDocument document = extract_document("a.txt.gz", damaged);
    EXPECT_EQ(document.refusal, "damaged gzip file");
    EXPECT_EQ(document.text, "");
  }
  std::string bomb;  // half a megabyte
  const std::string member = gzip(std::string(std::size_t{64} << 20, 'x'));
  for (int i = 0; i < 9; ++i) bomb += member;
  EXPECT_EQ(extract_document("a.txt.gz", bomb).refusal, "gzip file that unpacks to more than 512 MiB");
}

TEST(DocumentReader, EncodingsAreRepairedOrRefused) {
  EXPECT_EQ(extract_document("a.txt", "\xEF\xBB\xBFtext").text, "text");
  const ExtractedDocument latin = extract_document("a.html", "<p>caf\xE9 cr\xE8me</p>");
  EXPECT_EQ(latin.text, "caf\uFFFD cr\uFFFDme");
  EXPECT_EQ(latin.replaced_characters, 2U);
  EXPECT_EQ(extract_document("a.txt", std::string_view("\xFF\xFEt\0", 4)).refusal, "not UTF-8 (UTF-16)");
  std::string deep;
  for (int i = 0; i < 3000; ++i) deep += "<b>";
  EXPECT_THAT(extract_document("a.html", deep).refusal, HasSubstr("nested more than 2000 deep"));
}

}  // namespace
}  // namespace paceline
