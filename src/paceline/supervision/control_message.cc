#include "paceline/supervision/control_message.h"

namespace paceline {

nlohmann::json parse_message(const std::string& text) {
  auto message = nlohmann::json::parse(text, nullptr, false);
  return message.is_object() ? message : nlohmann::json();
}

std::string text_of(const nlohmann::json& message, const char* key, std::size_t most, const std::string& otherwise) {
  const auto found = message.find(key);
  if (found == message.end() || !found->is_string()) return otherwise;
  return found->get_ref<const std::string&>().substr(0, most);
}

std::int64_t number_of(const nlohmann::json& message, const char* key, std::int64_t otherwise) {
  const auto found = message.find(key);
  return found != message.end() && found->is_number_integer() ? found->get<std::int64_t>() : otherwise;
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
