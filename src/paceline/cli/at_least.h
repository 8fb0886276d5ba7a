#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace paceline {

/// Refuses an option's whole number below `least`, in words that a person reads.
inline CLI::Validator at_least(std::int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        std::int64_t value = 0;
        if (!CLI::detail::lexical_cast(text, value)) return "'" + text + "' is not a whole number";
        return value < least ? text + " is less than " + std::to_string(least) : std::string();
      },
      "", "at_least");
}

}  // namespace paceline
