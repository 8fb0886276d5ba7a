#include "paceline/config/run_settings.h"

#include "paceline/base/error.h"
#include "paceline/base/nearest_name.h"
#include "paceline/base/toml_text.h"

#define TOML_HEADER_ONLY 0
#include <toml++/toml.h>

#include <cmath>
#include <fstream>
#include <sstream>

namespace paceline {
namespace {

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(std::int64_t value) { return std::to_string(value); }
std::string toml_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const std::string text = fmt::format("{}", value);  // the shortest text that is read back to the same bits
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}
std::string toml_text(const std::string& value) {
  std::ostringstream stream;
  stream << toml::value<std::string>(value);
  return stream.str();
}
template <typename T>
std::string toml_text(const std::vector<T>& values) {
  std::string text;
  for (const T& value : values) text += (text.empty() ? "" : ", ") + toml_text(value);
  return "[" + text + "]";
}

std::string type_name(bool) { return "boolean"; }
std::string type_name(std::int64_t) { return "integer"; }
std::string type_name(double) { return "float"; }
std::string type_name(const std::string&) { return "string"; }
std::string type_name(const std::vector<std::int64_t>&) { return "list of integers"; }
std::string type_name(const std::vector<std::string>&) { return "list of strings"; }

bool read_node(const toml::node& node, bool& value) {
  if (!node.is_boolean()) return false;
  value = node.as_boolean()->get();
  return true;
}
bool read_node(const toml::node& node, std::int64_t& value) {
  if (!node.is_integer()) return false;
  value = node.as_integer()->get();
  return true;
}
bool read_node(const toml::node& node, double& value) {
  if (!node.is_number()) return false;
  value = *node.value<double>();
  return true;
}
bool read_node(const toml::node& node, std::string& value) {
  if (!node.is_string()) return false;
  value = node.as_string()->get();
  return true;
}
template <typename T>
bool read_node(const toml::node& node, std::vector<T>& values) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return false;
  std::vector<T> read;
  for (const toml::node& element : *array) {
    if (!read_node(element, read.emplace_back())) return false;
  }
  values = std::move(read);
  return true;
}

template <typename Access>
Setting setting(const std::string& key, const std::string& unit, Access access, const std::string& meaning) {
  RunSettings defaults;
  Setting row;
  row.key = key;
  row.type = type_name(access(defaults));
  row.default_value = toml_text(access(defaults));
  row.unit = unit;
  row.meaning = meaning;
  row.text = [access](const RunSettings& settings) { return toml_text(access(const_cast<RunSettings&>(settings))); };
  row.assign = [access, type = row.type, key](RunSettings& settings, const void* node, const std::string& where) {
    if (!read_node(*static_cast<const toml::node*>(node), access(settings))) {
      refuse("{}: {} must be {} {}", where, key, type.starts_with("integer") ? "an" : "a", type);
    }
  };
  return row;
}

#define ACCESS(member) [](RunSettings& s) -> auto& { return s.member; }

}  // namespace

std::vector<Setting> settings_table() {
  return {
      setting("run.folder", "", ACCESS(run.folder), "folder of the run: settings, plan, metrics, trace, logs, checkpoints"),

      setting("model.from", "", ACCESS(model.from),
              "Hugging Face folder that gives shape and initial weights, instead of [model]; empty: random weights"),
      setting("model.family", "", ACCESS(model.family), "llama or gpt2"),
      setting("model.vocab_size", "entries", ACCESS(model.vocab_size), "rows of the embedding; 0: the tokenizer's size"),
      setting("model.hidden_size", "elements", ACCESS(model.hidden_size), "width of the residual stream"),
      setting("model.num_hidden_layers", "layers", ACCESS(model.num_hidden_layers), "decoder layers"),
      setting("model.num_attention_heads", "heads", ACCESS(model.num_attention_heads), "query heads"),
      setting("model.num_key_value_heads", "heads", ACCESS(model.num_key_value_heads),
              "key/value heads (grouped-query attention); 0: as many as query heads"),
      setting("model.head_dim", "elements", ACCESS(model.head_dim), "width of a head; 0: hidden_size / num_attention_heads"),
      setting("model.intermediate_size", "elements", ACCESS(model.intermediate_size),
              "width of the feed-forward layer; 0: 4 x hidden_size (gpt2), 8/3 x hidden_size rounded up to 32 (llama)"),
      setting("model.max_position_embeddings", "tokens", ACCESS(model.max_position_embeddings),
              "longest sequence; 0: train.sequence_length"),
      setting("model.norm_epsilon", "", ACCESS(model.norm_epsilon), "epsilon of every norm"),
      setting("model.rope_theta", "", ACCESS(model.rope_theta), "base of the rotary frequencies (llama)"),
      setting("model.tie_word_embeddings", "", ACCESS(model.tie_word_embeddings),
              "the head uses the embedding's table (gpt2: always)"),
      setting("model.attention_bias", "", ACCESS(model.attention_bias), "biases on q, k, v and o (llama)"),
      setting("model.mlp_bias", "", ACCESS(model.mlp_bias), "biases on gate, up and down (llama)"),
      setting("model.activation", "", ACCESS(model.activation), "silu (llama), gelu_new or gelu (gpt2); empty: the family's"),
      setting("model.initializer_range", "", ACCESS(model.initializer_range), "standard deviation of initial weights"),

      setting("data.folder", "", ACCESS(data.folder), "folder that `paceline data build` wrote"),
      setting("data.train", "", ACCESS(data.train), "training shard in it, without .bin"),
      setting("data.held_out", "", ACCESS(data.held_out), "held-out shard in it, without .bin"),

      setting("train.steps", "steps", ACCESS(train.steps), "optimiser steps of the whole run"),
      setting("train.sequence_length", "tokens", ACCESS(train.sequence_length), "targets of a sample"),
      setting("train.global_batch_size", "sequences", ACCESS(train.global_batch_size),
              "sequences a step over all ranks; 0: micro_batch_size x gradient_accumulation_steps x dp"),
      setting("train.micro_batch_size", "sequences", ACCESS(train.micro_batch_size), "sequences a rank and pass"),
      setting("train.gradient_accumulation_steps", "passes", ACCESS(train.gradient_accumulation_steps),
              "micro-batches a rank and step; 0: from global_batch_size, else 1"),
      setting("train.max_minutes", "minutes", ACCESS(train.max_minutes), "save and leave after this time; 0: no limit"),
      setting("train.seed", "", ACCESS(train.seed), "initial weights and sample order"),
      setting("train.precision", "", ACCESS(train.precision), "fp32 or fp64"),
      setting("train.frozen", "", ACCESS(train.frozen),
              "regular expressions over Hugging Face parameter names (whole name) that are not trained"),
      setting("train.threads_per_rank", "threads", ACCESS(train.threads_per_rank),
              "0: OMP_NUM_THREADS, else usable cores / ranks of this machine"),

      setting("optimizer.learning_rate", "", ACCESS(optimizer.learning_rate), "peak learning rate of AdamW"),
      setting("optimizer.beta1", "", ACCESS(optimizer.beta1), "decay of the first moment"),
      setting("optimizer.beta2", "", ACCESS(optimizer.beta2), "decay of the second moment"),
      setting("optimizer.epsilon", "", ACCESS(optimizer.epsilon), "added to the square root of the second moment"),
      setting("optimizer.weight_decay", "", ACCESS(optimizer.weight_decay),
              "decoupled decay of matrices and embeddings; norms and biases never decay"),
      setting("optimizer.max_gradient_norm", "", ACCESS(optimizer.max_gradient_norm),
              "global norm above which gradients are scaled down; 0: no clipping"),

      setting("learning_rate.kind", "", ACCESS(learning_rate.kind), "after warm-up: cosine, linear, wsd or constant"),
      setting("learning_rate.warmup_steps", "steps", ACCESS(learning_rate.warmup_steps), "linear rise from 0"),
      setting("learning_rate.decay_steps", "steps", ACCESS(learning_rate.decay_steps), "wsd: length of the final decay"),
      setting("learning_rate.minimum_ratio", "", ACCESS(learning_rate.minimum_ratio), "last rate as a share of the peak"),

      setting("parallel.dp", "ranks", ACCESS(parallel.dp), "data-parallel replicas"),
      setting("parallel.tp", "ranks", ACCESS(parallel.tp), "tensor-parallel ranks of each layer"),
      setting("parallel.pp", "stages", ACCESS(parallel.pp), "pipeline stages"),
      setting("parallel.schedule", "", ACCESS(parallel.schedule), "1f1b or gpipe"),
      setting("parallel.layers_per_stage", "layers", ACCESS(parallel.layers_per_stage), "explicit split; empty: even"),
      setting("parallel.bucket_mb", "MiB", ACCESS(parallel.bucket_mb), "size of a gradient bucket of data parallelism"),

      setting("checkpoint.every_steps", "steps", ACCESS(checkpoint.every_steps), "0: only at the end and when asked to stop"),
      setting("checkpoint.keep_last", "checkpoints", ACCESS(checkpoint.keep_last), "older ones are removed; 0: keep all"),

      setting("evaluate.every_steps", "steps", ACCESS(evaluate.every_steps), "held-out loss during training; 0: at the end"),
      setting("evaluate.samples", "sequences", ACCESS(evaluate.samples), "held-out samples each time; 0: all"),

      setting("trace.enabled", "", ACCESS(trace.enabled), "record spans and scalars of each rank"),

      setting("supervision.hang_timeout_s", "s", ACCESS(supervision.hang_timeout_s),
              "a rank without progress for so long is taken for hung and named"),
      setting("supervision.connect_timeout_s", "s", ACCESS(supervision.connect_timeout_s),
              "time for all ranks to find each other at the start"),
  };
}

namespace {

const Setting& find_setting(const std::vector<Setting>& table, const std::string& key, const std::string& where) {
  for (const Setting& row : table) {
    if (row.key == key) return row;
  }
  std::vector<std::string> keys;
  for (const Setting& row : table) keys.push_back(row.key);
  refuse("{}: unknown key '{}'; the nearest known key is '{}' (`paceline config` prints all)", where, key,
         nearest_name(key, keys));
}

void apply_table(const toml::table& tree, const std::string& prefix, const std::string& name,
                 const std::vector<Setting>& table, RunSettings& settings) {
  for (const auto& [key, node] : tree) {
    const std::string full = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    const bool is_known_table = std::any_of(table.begin(), table.end(), [&](const Setting& row) {
      return row.key.rfind(full + ".", 0) == 0;
    });
    if (node.is_table() && is_known_table) {
      apply_table(*node.as_table(), full, name, table, settings);
      continue;
    }
    const std::string where = name + ":" + std::to_string(node.source().begin.line);
    if (node.is_table() && !node.as_table()->empty()) {  // an unknown table: name the first key in it
      const auto first = node.as_table()->cbegin();
      find_setting(table, full + "." + std::string(first->first.str()),
                   name + ":" + std::to_string(first->second.source().begin.line));
    }
    find_setting(table, full, where).assign(settings, &node, where);
  }
}

toml::table parse_toml(const std::string& text, const std::string& name) {
  if (const int line = line_with_too_many_dots(text); line > 0) {
    refuse("{}:{}: more than {} dots in a line", name, line, most_dots_in_a_line);
  }
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    refuse("{}:{}: {}", name, error.source().begin.line, error.description());
  }
}

void apply_override(const std::string& assignment, const std::vector<Setting>& table, RunSettings& settings) {
  const std::size_t equals = assignment.find('=');
  const std::string where = "--set " + assignment;
  if (equals == std::string::npos || equals == 0) refuse("{}: write --set key=value", where);
  const std::string key = assignment.substr(0, equals);
  const std::string value = assignment.substr(equals + 1);
  const Setting& row = find_setting(table, key, where);
  if (line_with_too_many_dots(value) > 0) refuse("{}: more than {} dots", where, most_dots_in_a_line);
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.insert("value", value);  // a bare word is a string
  }
  if (row.type == "string" && !parsed["value"].is_string()) parsed.insert_or_assign("value", value);
  row.assign(settings, parsed.get("value"), where);
}

}  // namespace

RunSettings parse_run_settings(const std::string& text, const std::string& name, const std::vector<std::string>& overrides) {
  const std::vector<Setting> table = settings_table();
  RunSettings settings;
  apply_table(parse_toml(text, name), "", name, table, settings);
  for (const std::string& assignment : overrides) apply_override(assignment, table, settings);
  validate(settings);
  return settings;
}

RunSettings read_run_settings(const std::string& path, const std::vector<std::string>& overrides) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("{}: cannot be read; give the TOML file of a run", path);
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad() || text.fail()) refuse("{}: cannot be read or is empty; give the TOML file of a run", path);
  return parse_run_settings(text.str(), path, overrides);
}

std::string to_toml(const RunSettings& settings) {
  std::string text, table;
  for (const Setting& row : settings_table()) {
    const std::size_t dot = row.key.find('.');
    if (row.key.substr(0, dot) != table) {
      table = row.key.substr(0, dot);
      text += (text.empty() ? "[" : "\n[") + table + "]\n";
    }
    text += row.key.substr(dot + 1) + " = " + row.text(settings) + "\n";
  }
  return text;
}

ModelConfig resolve_model(const RunSettings& settings, std::int64_t data_vocab_size) {
  const RunSettings::Model& from = settings.model;
  ModelConfig model;
  model.family = parse_family(from.family);
  const bool gpt2 = model.family == ModelFamily::gpt2;
  model.vocab_size = from.vocab_size > 0 ? from.vocab_size : data_vocab_size;
  model.hidden_size = from.hidden_size;
  model.num_hidden_layers = from.num_hidden_layers;
  model.num_attention_heads = from.num_attention_heads;
  model.num_key_value_heads = from.num_key_value_heads > 0 ? from.num_key_value_heads : from.num_attention_heads;
  if (from.head_dim == 0 && from.num_attention_heads > 0 && from.hidden_size % from.num_attention_heads != 0) {
    refuse("model.hidden_size {} is not a multiple of model.num_attention_heads {}: change one, or set model.head_dim",
           from.hidden_size, from.num_attention_heads);
  }
  model.head_dim = from.head_dim > 0 || from.num_attention_heads < 1 ? from.head_dim : from.hidden_size / from.num_attention_heads;
  model.intermediate_size = from.intermediate_size > 0 ? from.intermediate_size
                            : gpt2                      ? 4 * from.hidden_size
                                                        : (from.hidden_size * 8 / 3 + 31) / 32 * 32;
  model.max_position_embeddings =
      from.max_position_embeddings > 0 ? from.max_position_embeddings : settings.train.sequence_length;
  model.norm_epsilon = from.norm_epsilon;
  model.rope_theta = from.rope_theta;
  model.tie_word_embeddings = gpt2 || from.tie_word_embeddings;
  model.attention_bias = gpt2 || from.attention_bias;
  model.mlp_bias = gpt2 || from.mlp_bias;
  model.activation = !from.activation.empty() ? from.activation : gpt2 ? "gelu_new" : "silu";
  model.initializer_range = from.initializer_range;
  validate(model);
  if (model.max_position_embeddings < settings.train.sequence_length) {
    refuse("train.sequence_length {} is longer than model.max_position_embeddings {}", settings.train.sequence_length,
           model.max_position_embeddings);
  }
  return model;
}

ParallelOptions resolve_parallel(const RunSettings& settings) {
  const RunSettings::Parallel& from = settings.parallel;
  ParallelOptions options;
  options.layout = {.dp = static_cast<int>(from.dp), .tp = static_cast<int>(from.tp), .pp = static_cast<int>(from.pp)};
  options.layers_per_stage = from.layers_per_stage;
  options.frozen = settings.train.frozen;
  return options;
}

void validate(const RunSettings& settings) {
  const auto at_least = [](const char* key, auto value, auto least) {
    if (!(value >= least)) refuse("{} is {}: it must be at least {}", key, value, least);
  };
  const auto finite_at_least = [&](const char* key, double value, double least) {
    if (!std::isfinite(value)) refuse("{} is {}: it must be a finite number", key, value);
    at_least(key, value, least);
  };
  const auto within = [&](const char* key, std::int64_t value, std::int64_t least, std::int64_t most) {
    at_least(key, value, least);
    if (value > most) refuse("{} is {}: it must be at most {}", key, value, most);
  };
  const auto one_of = [](const char* key, const std::string& value, const std::vector<std::string>& known) {
    if (std::find(known.begin(), known.end(), value) == known.end()) {
      refuse("{} is '{}': it may be {}", key, value, fmt::join(known, ", "));
    }
  };
  if (settings.run.folder.empty()) refuse("run.folder is empty: name the folder of the run");
  one_of("model.family", settings.model.family, {"llama", "gpt2"});
  within("model.hidden_size", settings.model.hidden_size, 1, largest_model_size);
  at_least("train.steps", settings.train.steps, std::int64_t{1});
  // Far beyond any run, and their products fit 64 bits.
  constexpr std::int64_t most_sequences = 1 << 20, most_positions = 1 << 24, most_ranks = 1 << 20;
  within("train.sequence_length", settings.train.sequence_length, 1, most_positions);
  within("train.micro_batch_size", settings.train.micro_batch_size, 1, most_sequences);
  within("train.global_batch_size", settings.train.global_batch_size, 0, most_sequences);
  within("train.gradient_accumulation_steps", settings.train.gradient_accumulation_steps, 0, most_sequences);
  finite_at_least("train.max_minutes", settings.train.max_minutes, 0.0);
  at_least("train.threads_per_rank", settings.train.threads_per_rank, std::int64_t{0});
  one_of("train.precision", settings.train.precision, {"fp32", "fp64"});
  finite_at_least("optimizer.learning_rate", settings.optimizer.learning_rate, 0.0);
  finite_at_least("optimizer.weight_decay", settings.optimizer.weight_decay, 0.0);
  finite_at_least("optimizer.max_gradient_norm", settings.optimizer.max_gradient_norm, 0.0);
  finite_at_least("optimizer.epsilon", settings.optimizer.epsilon, 0.0);
  for (const auto& [key, value] : {std::pair{"optimizer.beta1", settings.optimizer.beta1}, {"optimizer.beta2", settings.optimizer.beta2}}) {
    if (!(value >= 0 && value < 1)) refuse("{} is {}: it must be at least 0 and below 1", key, value);
  }
  one_of("learning_rate.kind", settings.learning_rate.kind, {"cosine", "linear", "wsd", "constant"});
  at_least("learning_rate.warmup_steps", settings.learning_rate.warmup_steps, std::int64_t{0});
  at_least("learning_rate.decay_steps", settings.learning_rate.decay_steps, std::int64_t{0});
  if (!(settings.learning_rate.minimum_ratio >= 0 && settings.learning_rate.minimum_ratio <= 1)) {
    refuse("learning_rate.minimum_ratio is {}: it must be between 0 and 1", settings.learning_rate.minimum_ratio);
  }
  within("parallel.dp", settings.parallel.dp, 1, most_ranks);
  within("parallel.tp", settings.parallel.tp, 1, most_ranks);
  within("parallel.pp", settings.parallel.pp, 1, most_ranks);
  within("parallel.dp x tp x pp", settings.parallel.dp * settings.parallel.tp * settings.parallel.pp, 1, most_ranks);
  one_of("parallel.schedule", settings.parallel.schedule, {"1f1b", "gpipe"});
  if (!(settings.parallel.bucket_mb > 0)) refuse("parallel.bucket_mb is {}: it must be positive", settings.parallel.bucket_mb);
  constexpr double most_bucket_mb = 1 << 20;
  if (settings.parallel.bucket_mb > most_bucket_mb) {
    refuse("parallel.bucket_mb is {}: it must be at most {}", settings.parallel.bucket_mb, most_bucket_mb);
  }
  at_least("checkpoint.every_steps", settings.checkpoint.every_steps, std::int64_t{0});
  at_least("checkpoint.keep_last", settings.checkpoint.keep_last, std::int64_t{0});
  at_least("evaluate.every_steps", settings.evaluate.every_steps, std::int64_t{0});
  at_least("evaluate.samples", settings.evaluate.samples, std::int64_t{0});
  if (!(settings.supervision.hang_timeout_s > 0)) refuse("supervision.hang_timeout_s must be positive");
  if (!(settings.supervision.connect_timeout_s > 0)) refuse("supervision.connect_timeout_s must be positive");
}

}  // namespace paceline
