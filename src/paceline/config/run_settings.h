#pragma once

#include "paceline/arch/model_config.h"
#include "paceline/parallel/rank_program.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace paceline {

/// One training run, as its TOML file describes it. `paceline config` prints every key; settings_table() is the list.
struct RunSettings {
  struct Run {
    std::string folder = "runs/default";
  } run;
  struct Model {
    std::string from;  ///< Hugging Face folder whose shape and weights the run starts from
    std::string family = "llama";
    std::int64_t vocab_size = 0;
    std::int64_t hidden_size = 128;
    std::int64_t num_hidden_layers = 4;
    std::int64_t num_attention_heads = 4;
    std::int64_t num_key_value_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t intermediate_size = 0;
    std::int64_t max_position_embeddings = 0;
    double norm_epsilon = 1e-5;
    double rope_theta = 10000.0;
    bool tie_word_embeddings = false;
    bool attention_bias = false;
    bool mlp_bias = false;
    std::string activation;
    double initializer_range = 0.02;
  } model;
  struct Data {
    std::string folder;
    std::string train = "train";
    std::string held_out = "held_out";
  } data;
  struct Train {
    std::int64_t steps = 1000;
    std::int64_t sequence_length = 256;
    std::int64_t global_batch_size = 0;
    std::int64_t micro_batch_size = 8;
    std::int64_t gradient_accumulation_steps = 0;
    double max_minutes = 0;
    std::int64_t seed = 1;
    std::string precision = "fp32";
    std::vector<std::string> frozen;
    std::int64_t threads_per_rank = 0;
  } train;
  struct Optimizer {
    double learning_rate = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    double max_gradient_norm = 1.0;
  } optimizer;
  struct Schedule {
    std::string kind = "cosine";
    std::int64_t warmup_steps = 0;
    std::int64_t decay_steps = 0;
    double minimum_ratio = 0.1;
  } learning_rate;
  struct Parallel {
    std::int64_t dp = 1;
    std::int64_t tp = 1;
    std::int64_t pp = 1;
    std::string schedule = "1f1b";
    std::vector<std::int64_t> layers_per_stage;
    double bucket_mb = 25.0;
  } parallel;
  struct Checkpoint {
    std::int64_t every_steps = 0;
    std::int64_t keep_last = 2;
  } checkpoint;
  struct Evaluate {
    std::int64_t every_steps = 0;
    std::int64_t samples = 0;
  } evaluate;
  struct Trace {
    bool enabled = true;
  } trace;
  struct Supervision {
    double hang_timeout_s = 120.0;
    double connect_timeout_s = 60.0;
  } supervision;
};

/// One key of the run's file.
struct Setting {
  std::string key;           ///< "parallel.tp"
  std::string type;          ///< boolean, integer, float, string, list of integers, list of strings
  std::string default_value; ///< as TOML
  std::string unit;          ///< empty where there is none
  std::string meaning;
  std::function<std::string(const RunSettings&)> text;  ///< the value as TOML
  /// Takes a TOML value; refuses another type, naming `where`.
  std::function<void(RunSettings&, const void* toml_node, const std::string& where)> assign;
};

/// Every key of a run, in the order in which `paceline config` prints them.
std::vector<Setting> settings_table();

/// Reads a TOML file, then applies `overrides` ("key=value") in order. Unknown keys are refused with file, line and the
/// nearest known one; wrong types and syntax errors likewise.
RunSettings read_run_settings(const std::string& path, const std::vector<std::string>& overrides);

/// Reads settings from a TOML text; `name` stands for the file in messages.
RunSettings parse_run_settings(const std::string& text, const std::string& name, const std::vector<std::string>& overrides);

/// The whole of a run as TOML, one line a key: what a run's folder keeps.
std::string to_toml(const RunSettings& settings);

/// The shape that [model] describes, with defaults resolved: vocab_size 0 takes `data_vocab_size`. Refuses impossible shapes.
ModelConfig resolve_model(const RunSettings& settings, std::int64_t data_vocab_size);

/// The layout part of the settings; refuses degrees below 1.
ParallelOptions resolve_parallel(const RunSettings& settings);

/// Refuses values that no run can have (negative steps, clip -1 or nan, unknown precision or schedule, ...).
void validate(const RunSettings& settings);

}  // namespace paceline
