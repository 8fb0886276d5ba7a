#include "paceline/data/document_reader.h"

#include <zlib.h>

#include <algorithm>
#include <unordered_set>

#include "paceline/base/error.h"
#include "paceline/data/html_text.h"
#include "paceline/data/utf8.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::string name_without_gz(const fs::path& path) {
  std::string name = path.filename().string();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return name;
}

bool has_extension(const fs::path& path, const std::vector<std::string>& extensions) {
  const std::string name = name_without_gz(path);
  return std::any_of(extensions.begin(), extensions.end(), [&](const std::string& end) { return name.ends_with(end); });
}

/// A gzip file of a megabyte may unpack to a gigabyte.
constexpr std::size_t largest_unpacked = std::size_t{512} << 20;

struct Unpacked {
  std::string text;
  std::string refusal;
};

/// All members of a gzip file.
Unpacked unpack_gzip(std::string_view bytes) {
  std::string text;
  z_stream stream = {};
  constexpr int gzip_window = 15 + 16;
  if (inflateInit2(&stream, gzip_window) != Z_OK) fail("no memory to unpack gzip files");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  std::vector<char> block(1 << 18);
  int status = Z_OK;
  do {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    status = inflate(&stream, Z_NO_FLUSH);
    text.append(block.data(), block.size() - stream.avail_out);
    if (status == Z_STREAM_END && stream.avail_in > 0) {
      if (inflateReset(&stream) != Z_OK) break;
      status = Z_OK;
    }
  } while (status == Z_OK && text.size() <= largest_unpacked && (stream.avail_in > 0 || stream.avail_out == 0));
  inflateEnd(&stream);
  if (text.size() > largest_unpacked) return {.refusal = "gzip file that unpacks to more than 512 MiB"};
  if (status != Z_STREAM_END) return {.refusal = "damaged gzip file"};
  return {.text = std::move(text)};
}

}  // namespace

std::vector<fs::path> list_documents(const std::vector<std::string>& paths,
                                     const std::vector<std::string>& extensions) {
  std::vector<fs::path> files;
  std::unordered_set<std::string> seen;
  const auto add = [&](const fs::path& path) {
    if (seen.insert(path.string()).second) files.push_back(path);
  };
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) {
      add(path);
      continue;
    }
    if (!fs::is_directory(path, error)) fail("{}: no such file or folder", path);
    std::vector<fs::path> inside;
    for (fs::recursive_directory_iterator entry(path, error), end; entry != end; entry.increment(error)) {
      if (error) break;
      if (entry->is_regular_file(error) && has_extension(entry->path(), extensions)) inside.push_back(entry->path());
    }
    if (error) fail("{}: cannot be read: {}", path, error.message());
    std::sort(inside.begin(), inside.end(),
              [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    for (const fs::path& file : inside) add(file);
  }
  return files;
}

ExtractedDocument extract_document(const fs::path& path, std::string_view bytes) {
  ExtractedDocument document;
  Unpacked unpacked;
  if (path.extension() == ".gz") {
    unpacked = unpack_gzip(bytes);
    if (!unpacked.refusal.empty()) return {.refusal = unpacked.refusal};
    bytes = unpacked.text;
  }
  if (bytes.starts_with("\xFE\xFF") || bytes.starts_with("\xFF\xFE")) return {.refusal = "not UTF-8 (UTF-16)"};
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);
  document.text = repair_utf8(std::string(bytes), document.replaced_characters);
  const std::string name = name_without_gz(path);
  if (name.ends_with(".html") || name.ends_with(".htm") || name.ends_with(".xhtml")) {
    try {
      document.text = html_text(document.text);
    } catch (const Error& error) {
      return {.refusal = error.what()};
    }
  }
  return document;
}

}  // namespace paceline
