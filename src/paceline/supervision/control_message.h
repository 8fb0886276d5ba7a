#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace paceline {

/// The messages of the control connection are flat JSON objects with a "type". Whatever arrives may be hostile, so that
/// nothing here throws.

/// The object in `text`; null for anything else.
nlohmann::json parse_message(const std::string& text);

/// A text, cut to `most` bytes; `otherwise` if there is none.
std::string text_of(const nlohmann::json& message, const char* key, std::size_t most,
    const std::string& otherwise = {});

std::int64_t number_of(const nlohmann::json& message, const char* key, std::int64_t otherwise);

/// JSON text; bytes that are not UTF-8 are replaced.
std::string write_message(const nlohmann::json& message);

/// On one line and without control characters: for a terminal.
std::string one_line(std::string text);

}  // namespace paceline
