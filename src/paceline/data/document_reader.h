#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

/// The files below `paths` (files or folders) whose names end in one of `extensions`, with or without ".gz" behind it:
/// in the order of `paths`, inside a folder by name, each file once. A path that does not exist is an Error.
std::vector<std::filesystem::path> list_documents(const std::vector<std::string>& paths,
                                                  const std::vector<std::string>& extensions);

/// The text of one input file.
struct ExtractedDocument {
  std::string text;                     ///< valid UTF-8, empty where `refusal` is set
  std::size_t replaced_characters = 0;  ///< ill-formed UTF-8 sequences that became U+FFFD
  std::string refusal;  ///< why the document cannot be used: "not UTF-8 (UTF-16)", "damaged gzip file", ...
};

/// Text of a file's bytes: unpacked if the name ends in .gz (several members are one file), repaired UTF-8, a byte
/// order mark dropped, the main text where the name says HTML. A file that is no text is reported, never thrown.
ExtractedDocument extract_document(const std::filesystem::path& path, std::string_view bytes);

}  // namespace paceline
