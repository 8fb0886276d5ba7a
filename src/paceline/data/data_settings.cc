#include "paceline/data/data_settings.h"

#include <toml++/toml.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>

#include "paceline/base/error.h"
#include "paceline/base/nearest_name.h"
#include "paceline/base/toml_text.h"

namespace paceline {
namespace {

class SettingsReader {
 public:
  explicit SettingsReader(std::string file) : file_(std::move(file)) {}

  DataSettings read() {
    std::ifstream stream(file_, std::ios::binary);
    std::ostringstream content;
    if (stream) content << stream.rdbuf();
    if (!stream || content.fail()) refuse("{}: cannot be read or is empty", file_);
    const std::string text = content.str();
    if (const int line = line_with_too_many_dots(text); line > 0) {
      refuse("{}:{}: more than {} dots in a line", file_, line, most_dots_in_a_line);
    }
    toml::table root;
    try {
      root = toml::parse(text, file_);
    } catch (const toml::parse_error& error) {
      refuse("{}:{}: {}", file_, error.source().begin.line, error.description());
    }
    for (const auto& [section, node] : root) {
      const toml::table* table = node.as_table();
      if (table == nullptr) {
        refuse("{}: '{}' stands outside a section; known keys: {}", place(node), section.str(), known_keys());
      }
      for (const auto& [key, value] : *table)
        read_value(std::string(section.str()) + "." + std::string(key.str()), value);
    }
    require(!settings_.input_paths.empty(), "input.paths");
    require(!settings_.output_folder.empty(), "output.folder");
    return settings_;
  }

 private:
  using Read = std::function<void(const std::string& key, const toml::node& value)>;

  std::string place(const toml::node& node) const { return fmt::format("{}:{}", file_, node.source().begin.line); }

  void require(bool there, std::string_view key) const {
    if (!there) refuse("{}: {} is missing", file_, key);
  }

  std::string known_keys() const {
    std::string text;
    for (const auto& [key, read] : readers_) text += (text.empty() ? "" : ", ") + key;
    return text;
  }

  void read_value(const std::string& key, const toml::node& value) {
    const auto reader = readers_.find(key);
    if (reader == readers_.end()) {
      std::vector<std::string> known;
      for (const auto& [name, read] : readers_) known.push_back(name);
      refuse("{}: unknown key '{}', the nearest known one is '{}'", place(value), key, nearest_name(key, known));
    }
    reader->second(key, value);
  }

  std::string text(const std::string& key, const toml::node& node) const {
    if (const auto value = node.value_exact<std::string>(); value && !value->empty()) return *value;
    refuse("{}: {} must be a text in quotes, not empty", place(node), key);
  }

  std::vector<std::string> texts(const std::string& key, const toml::node& node) const {
    const toml::array* array = node.as_array();
    if (array == nullptr || array->empty()) refuse("{}: {} must be a list of texts, not empty", place(node), key);
    std::vector<std::string> result;
    for (const toml::node& element : *array) result.push_back(text(key, element));
    return result;
  }

  std::int64_t integer(const std::string& key, const toml::node& node, std::int64_t least, std::int64_t most) const {
    const auto value = node.value_exact<std::int64_t>();
    if (!value || *value < least || *value > most) {
      refuse("{}: {} must be a whole number from {} to {}", place(node), key, least, most);
    }
    return *value;
  }

  double fraction(const std::string& key, const toml::node& node) const {
    const auto value = node.value<double>();
    if (!value || !(*value > 0 && *value < 1))
      refuse("{}: {} must be between 0 and 1, both excluded", place(node), key);
    return *value;
  }

  std::string file_;
  DataSettings settings_;
  const std::map<std::string, Read> readers_ = {
      {"input.paths", [this](auto& key, auto& node) { settings_.input_paths = texts(key, node); }},
      {"input.extensions", [this](auto& key, auto& node) { settings_.extensions = texts(key, node); }},
      {"output.folder", [this](auto& key, auto& node) { settings_.output_folder = text(key, node); }},
      {"tokenizer.vocabulary_size",
       [this](auto& key, auto& node) { settings_.vocabulary_size = integer(key, node, 257, 1 << 20); }},
      {"split.held_out_fraction", [this](auto& key, auto& node) { settings_.held_out_fraction = fraction(key, node); }},
      {"split.seed",
       [this](auto& key, auto& node) {
         settings_.seed = static_cast<std::uint64_t>(integer(key, node, 0, std::numeric_limits<std::int64_t>::max()));
       }},
      {"run.workers",
       [this](auto& key, auto& node) { settings_.workers = static_cast<int>(integer(key, node, 0, 4096)); }},
  };
};

}  // namespace

DataSettings read_data_settings(const std::filesystem::path& path) { return SettingsReader(path.string()).read(); }

}  // namespace paceline
