#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// What each <name>_fuzz.cc defines; fuzz_target.cc drives it with libFuzzer.
namespace paceline {

/// Parses hostile bytes. A paceline::Error is the expected answer to bad ones; anything else that happens (another
/// exception, a sanitizer's report, a leak, more time or memory than run_all.sh allows) is a finding.
void parse_foreign_bytes(std::string_view bytes);

/// Valid inputs to start from, written by the project's own writers where there are some, and inputs that hurt other
/// parsers of this kind. Each runs whole; the fuzzer then mutates what is short.
std::vector<std::string> seeds();

/// Text inputs that hurt recursive parsers: 200,000 levels of nesting alone, and inside what `before` and `after` make
/// of them.
std::vector<std::string> deeply_nested_json(const std::string& before, const std::string& after);

/// A place for parsers that read files: `name` in this process's own folder, holding `bytes`.
std::filesystem::path input_file(const std::string& name, std::string_view bytes);

/// Reports a parser that took bytes and gave something that contradicts itself.
void require(bool condition, const char* what);

}  // namespace paceline
