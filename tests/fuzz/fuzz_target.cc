#include "fuzz_target.h"

#include "paceline/base/error.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace paceline {
namespace {

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  require(static_cast<bool>(file.flush()), "the driver could not write its file");
}

}  // namespace

std::vector<std::string> deeply_nested_json(const std::string& before, const std::string& after) {
  constexpr int depth = 200'000;
  const std::string arrays = std::string(depth, '[') + std::string(depth, ']');
  std::string open;
  std::string close;
  for (int i = 0; i < depth; ++i) {
    open += "{\"a\":";
    close += '}';
  }
  const std::string objects = open + "1" + close;
  return {std::string(depth, '['), open, arrays, objects, before + arrays + after, before + objects + after};
}

std::filesystem::path input_file(const std::string& name, std::string_view bytes) {
  static const std::filesystem::path folder = [] {
    std::string pattern = (std::filesystem::temp_directory_path() / "paceline_fuzz_XXXXXX").string();
    require(::mkdtemp(pattern.data()) != nullptr, "the driver could not make its folder");
    return std::filesystem::path(pattern);
  }();
  write_file(folder / name, bytes);
  return folder / name;
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

}  // namespace paceline

/// With PACELINE_FUZZ_SEEDS=FOLDER the program writes its seeds there and ends.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const folder = std::getenv("PACELINE_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  const std::vector<std::string> all = paceline::seeds();
  for (std::size_t i = 0; i < all.size(); ++i) {
    paceline::write_file(std::filesystem::path(folder) / ("seed_" + std::to_string(i)), all[i]);
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    paceline::parse_foreign_bytes({reinterpret_cast<const char*>(data), size});
  } catch (const paceline::Error&) {
  }
  return 0;
}
