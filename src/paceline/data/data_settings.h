#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace paceline {

/// What `paceline data build` is asked for. Relative paths are relative to the current folder, not to the file.
struct DataSettings {
  std::vector<std::string> input_paths;                             ///< input.paths: files or folders
  std::vector<std::string> extensions = {".html", ".htm", ".txt"};  ///< input.extensions
  std::string output_folder;                                        ///< output.folder
  std::int64_t vocabulary_size = 8192;                              ///< tokenizer.vocabulary_size, tokens
  double held_out_fraction = 0.02;                                  ///< split.held_out_fraction of the documents
  std::uint64_t seed = 1;                                           ///< split.seed
  int workers = 0;                                                  ///< run.workers, threads; 0: one per usable core
};

/// Reads a data.toml. A wrong key, type or value is refused with file, line and, for a key, the nearest known one.
DataSettings read_data_settings(const std::filesystem::path& path);

}  // namespace paceline
