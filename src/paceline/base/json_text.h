#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <concepts>
#include <string>
#include <string_view>
#include <utility>

namespace paceline {

/// JSON from outside nests at most so deep. Ours and Hugging Face's stay below ten; the JSON library copies, compares
/// and prints by recursion, so that a file of brackets would end the program.
inline constexpr int deepest_json = 200;

/// Whether the brackets of a JSON text nest deeper than that. Those inside strings do not count.
bool json_nests_too_deep(std::string_view text);

/// The document, or one that `is_discarded()` where the text is no JSON or nests too deep.
template <typename Json = nlohmann::json>
Json parse_json(std::string_view text) {
  if (json_nests_too_deep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// The number of a JSON value that is whole and fits the type; any other value is the JSON library's type error. The
/// library's own conversion takes true for 1, cuts 1.5 and gives something for 1e300.
template <std::integral Number, typename Json>
Number whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.template get<typename Json::number_unsigned_t>();
    if (std::in_range<Number>(number)) return static_cast<Number>(number);
  } else if (value.is_number_integer()) {
    const auto number = value.template get<typename Json::number_integer_t>();
    if (std::in_range<Number>(number)) return static_cast<Number>(number);
  }
  const std::string what = value.is_number() ? value.dump() : value.type_name();
  throw Json::type_error::create(302, fmt::format("{} where a whole number was expected", what), nullptr);
}

}  // namespace paceline
