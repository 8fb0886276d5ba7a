#include "paceline/base/error.h"
#include "paceline/base/replace_file.h"
#include "paceline/base/toml_text.h"
#include "paceline/cluster/profile.h"

#define TOML_HEADER_ONLY 0
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace paceline {
namespace {

constexpr std::int64_t schema_version = 1;

/// A table of the file with its place in it, for messages.
struct Section {
  const toml::table& table;
  std::string where;  ///< "machine.toml: products[3]"

  double number(const char* key, double least) const {
    const std::optional<double> value = table[key].is_number() ? table[key].value<double>() : std::nullopt;
    if (!value) refuse("{}.{} is missing or no number: measure again with `paceline bench machine`", where, key);
    if (!std::isfinite(*value) || *value < least) refuse("{}.{} is {}: it must be at least {}", where, key, *value, least);
    return *value;
  }
  /// A rate: positive, as times are divided by it.
  double rate(const char* key) const {
    const double value = number(key, 0.0);
    if (value <= 0.0) refuse("{}.{} is 0: it must be positive", where, key);
    return value;
  }
  std::int64_t integer(const char* key, std::int64_t least,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    const std::optional<std::int64_t> value = table[key].value_exact<std::int64_t>();
    if (!value) refuse("{}.{} is missing or no integer: measure again with `paceline bench machine`", where, key);
    if (*value < least) refuse("{}.{} is {}: it must be at least {}", where, key, *value, least);
    if (*value > most) refuse("{}.{} is {}: it must be at most {}", where, key, *value, most);
    return *value;
  }
  /// Ranks, threads, cores: products of two of them fit an int.
  int number_of(const char* key, int least) const {
    constexpr std::int64_t most = 32768;
    return static_cast<int>(integer(key, least, most));
  }
  std::string text(const char* key) const {
    const std::optional<std::string> value = table[key].value_exact<std::string>();
    if (!value) refuse("{}.{} is missing or no string: measure again with `paceline bench machine`", where, key);
    return *value;
  }
  Occupancy occupancy() const {
    return {.threads = number_of("threads", 1), .ranks = number_of("ranks", 1)};
  }
};

template <typename Read>
void read_array(const toml::table& file, const std::string& name, const char* key, Read read) {
  const toml::array* array = file[key].as_array();
  if (array == nullptr) return;
  for (std::size_t i = 0; i < array->size(); ++i) {
    const std::string where = fmt::format("{}: {}[{}]", name, key, i);
    const toml::table* table = array->get(i)->as_table();
    if (table == nullptr) refuse("{} must be a table", where);
    read(Section{*table, where});
  }
}

Pass parse_pass(const Section& section) {
  const std::string name = section.text("pass");
  for (const Pass pass : {Pass::forward, Pass::backward_input, Pass::backward_weight}) {
    if (name == pass_name(pass)) return pass;
  }
  refuse("{}.pass is '{}': it may be forward, backward_input or backward_weight", section.where, name);
}

std::string quoted(const std::string& text) {
  std::ostringstream stream;
  stream << toml::value<std::string>(text);
  return stream.str();
}

/// The shortest text that is read back to the same bits, always a TOML float.
std::string number(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string occupancy_text(Occupancy occupancy) {
  return fmt::format("threads = {}, ranks = {}", occupancy.threads, occupancy.ranks);
}

}  // namespace

MachineProfile parse_machine_profile(const std::string& text, const std::string& name) {
  if (const int line = line_with_too_many_dots(text); line > 0) {
    refuse("{}:{}: more than {} dots in a line", name, line, most_dots_in_a_line);
  }
  toml::table file;
  try {
    file = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    refuse("{}:{}: {}", name, error.source().begin.line, error.description());
  }
  const Section root{file, name};
  if (const std::int64_t version = root.integer("schema_version", 1); version != schema_version) {
    refuse("{}: a machine profile of schema version {}, and this program reads {}: measure again with `paceline bench machine`",
           name, version, schema_version);
  }
  MachineProfile profile;
  profile.measured = true;
  profile.file = name;
  const toml::table* machine_table = file["machine"].as_table();
  if (machine_table == nullptr) refuse("{}: [machine] is missing: measure again with `paceline bench machine`", name);
  const Section machine{*machine_table, name + ": machine"};
  profile.cpu = machine.text("cpu");
  profile.cores = machine.number_of("cores", 1);
  profile.memory_bytes = machine.integer("memory_bytes", 0);
  profile.operation_overhead_s = machine.number("operation_overhead_s", 0);
  profile.action_overhead_s = machine.number("action_overhead_s", 0);
  profile.disk_read_bytes_per_s = machine.rate("disk_read_bytes_per_s");
  profile.disk_write_bytes_per_s = machine.rate("disk_write_bytes_per_s");
  read_array(file, name, "products", [&](const Section& entry) {
    profile.products.push_back({.precision = entry.text("precision"), .occupancy = entry.occupancy(),
                                .pass = parse_pass(entry), .tokens = entry.integer("tokens", 1),
                                .in = entry.integer("in", 1), .out = entry.integer("out", 1),
                                .flops_per_s = entry.rate("flops_per_s")});
  });
  read_array(file, name, "attention", [&](const Section& entry) {
    profile.attention.push_back({.precision = entry.text("precision"), .occupancy = entry.occupancy(),
                                 .sequence_length = entry.integer("sequence_length", 1),
                                 .head_dim = entry.integer("head_dim", 1),
                                 .forward_flops_per_s = entry.rate("forward_flops_per_s"),
                                 .backward_flops_per_s = entry.rate("backward_flops_per_s")});
  });
  read_array(file, name, "operations", [&](const Section& entry) {
    profile.operations.push_back({.operation = entry.text("operation"), .occupancy = entry.occupancy(),
                                  .forward_bytes_per_s = entry.rate("forward_bytes_per_s"),
                                  .backward_bytes_per_s = entry.number("backward_bytes_per_s", 0)});
  });
  read_array(file, name, "memory", [&](const Section& entry) {
    profile.memory.push_back({.occupancy = entry.occupancy(), .bytes_per_s = entry.rate("bytes_per_s")});
  });
  read_array(file, name, "messages", [&](const Section& entry) {
    profile.messages.push_back({.backend = entry.text("backend"), .operation = entry.text("operation"),
                                .ranks = entry.number_of("ranks", 2),
                                .groups = entry.number_of("groups", 1),
                                .bytes = entry.number("bytes", 0), .seconds = entry.number("seconds", 0)});
  });
  const auto has_fp32 = [](const auto& entries) {
    return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.precision == "fp32"; });
  };
  if (!has_fp32(profile.products) || !has_fp32(profile.attention) || profile.memory.empty()) {
    refuse("{}: needs products and attention in fp32 and memory: measure again with `paceline bench machine`", name);
  }
  return profile;
}

std::string to_toml(const MachineProfile& profile) {
  std::string text = fmt::format("schema_version = {}\n", schema_version);
  const auto array = [&](const char* name, const auto& entries, auto line) {
    if (entries.empty()) return;
    text += fmt::format("\n{} = [\n", name);
    for (const auto& entry : entries) text += "  {" + line(entry) + "},\n";
    text += "]\n";
  };
  array("products", profile.products, [](const ProductRate& entry) {
    return fmt::format("precision = {}, {}, pass = \"{}\", tokens = {}, in = {}, out = {}, flops_per_s = {}",
                       quoted(entry.precision), occupancy_text(entry.occupancy), pass_name(entry.pass), entry.tokens, entry.in,
                       entry.out, number(entry.flops_per_s));
  });
  array("attention", profile.attention, [](const AttentionRate& entry) {
    return fmt::format("precision = {}, {}, sequence_length = {}, head_dim = {}, forward_flops_per_s = {}, "
                       "backward_flops_per_s = {}",
                       quoted(entry.precision), occupancy_text(entry.occupancy), entry.sequence_length, entry.head_dim,
                       number(entry.forward_flops_per_s), number(entry.backward_flops_per_s));
  });
  array("operations", profile.operations, [](const OperationRate& entry) {
    return fmt::format("operation = {}, {}, forward_bytes_per_s = {}, backward_bytes_per_s = {}", quoted(entry.operation),
                       occupancy_text(entry.occupancy), number(entry.forward_bytes_per_s),
                       number(entry.backward_bytes_per_s));
  });
  array("memory", profile.memory, [](const MemoryRate& entry) {
    return fmt::format("{}, bytes_per_s = {}", occupancy_text(entry.occupancy), number(entry.bytes_per_s));
  });
  array("messages", profile.messages, [](const MessageTime& entry) {
    return fmt::format("backend = {}, operation = {}, ranks = {}, groups = {}, bytes = {}, seconds = {}", quoted(entry.backend),
                       quoted(entry.operation), entry.ranks, entry.groups, number(entry.bytes), number(entry.seconds));
  });
  // Arrays of the root table come before any [table] in TOML: [machine] is last.
  text += fmt::format("\n[machine]\ncpu = {}\ncores = {}\nmemory_bytes = {}\n", quoted(profile.cpu), profile.cores,
                      profile.memory_bytes);
  text += fmt::format("operation_overhead_s = {}\naction_overhead_s = {}\n", number(profile.operation_overhead_s),
                      number(profile.action_overhead_s));
  text += fmt::format("disk_read_bytes_per_s = {}\ndisk_write_bytes_per_s = {}\n", number(profile.disk_read_bytes_per_s),
                      number(profile.disk_write_bytes_per_s));
  return text;
}

std::string machine_profile_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string folder = variable("XDG_CONFIG_HOME");
  if (folder.empty()) folder = variable("HOME") + "/.config";
  return folder + "/paceline/machine.toml";
}

MachineProfile read_machine_profile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || text.fail()) fail("{}: cannot be read: `paceline bench machine` writes it", path);
  return parse_machine_profile(text.str(), path);
}

MachineProfile find_machine_profile(int cores) {
  const std::string path = machine_profile_path();
  return std::filesystem::exists(path) ? read_machine_profile(path) : built_in_profile(cores);
}

void write_machine_profile(const MachineProfile& profile, const std::string& path) {
  const std::filesystem::path place(path);
  std::error_code error;
  if (place.has_parent_path()) std::filesystem::create_directories(place.parent_path(), error);
  if (error) fail("{}: its folder cannot be made: {}", path, error.message());
  replace_file(path, to_toml(profile));
}

}  // namespace paceline
