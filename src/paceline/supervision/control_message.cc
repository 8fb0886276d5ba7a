#include "paceline/supervision/control_message.h"

#include "paceline/base/json_text.h"

namespace paceline {

nlohmann::json parse_message(const std::string& text) {
  auto message = parse_json(text);
  return message.is_object() ? message : nlohmann::json();
}

std::string text_of(const nlohmann::json& message, const char* key, std::size_t most, const std::string& otherwise) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_string()) return otherwise;
  return found->get_ref<const std::string&>().substr(0, most);
}

std::int64_t number_of(const nlohmann::json& message, const char* key, std::int64_t otherwise) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_number_integer()) return otherwise;
  const bool too_large = found->is_number_unsigned() && found->get<std::uint64_t>() > INT64_MAX;
  return too_large ? otherwise : found->get<std::int64_t>();
}

std::string write_message(const nlohmann::json& message) {
  return message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace paceline
