#pragma once

#include "paceline/arch/huggingface_config.h"
#include "paceline/base/philox.h"
#include "paceline/checkpoint/checkpoint.h"
#include "paceline/ops/memory_account.h"
#include "paceline/parallel/rank_program.h"
#include "paceline/train/model_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace paceline {

inline ModelConfig tiny_llama() {
  return {.family = ModelFamily::llama, .vocab_size = 131, .hidden_size = 32, .num_hidden_layers = 2, .num_attention_heads = 4,
          .num_key_value_heads = 2, .head_dim = 12, .intermediate_size = 48, .max_position_embeddings = 40,
          .norm_epsilon = 1e-5, .attention_bias = true, .mlp_bias = true, .initializer_range = 0.3};
}

inline ModelConfig tiny_gpt2() {
  return {.family = ModelFamily::gpt2, .vocab_size = 131, .hidden_size = 32, .num_hidden_layers = 2, .num_attention_heads = 4,
          .num_key_value_heads = 4, .head_dim = 8, .intermediate_size = 48, .max_position_embeddings = 40, .norm_epsilon = 1e-5,
          .tie_word_embeddings = true, .attention_bias = true, .mlp_bias = true, .activation = "gelu_new",
          .initializer_range = 0.3};
}

/// A model with random weights in memory.
struct TinyModel {
  TinyModel(const ModelConfig& model, const std::string& precision)
      : program(build_rank_program(model, {}, {})),
        state(program, 0, parse_precision(precision), std::int64_t{1} << 40, false, account) {
    state.initialize_weights(3);
  }
  MemoryAccount account;
  Program program;
  ModelState state;
};

/// Writes a random model as step 7 of a run.
inline std::filesystem::path write_run(const std::filesystem::path& run, const ModelConfig& model) {
  TinyModel tiny(model, "fp64");
  std::vector<StoredParameter> parameters;
  for (std::size_t i = 0; i < tiny.program.parameters.size(); ++i) {
    parameters.push_back({&tiny.program.parameters[i], {{"weights", tiny.state.weight(static_cast<int>(i))}}});
  }
  return save_checkpoint({.run_folder = run, .step = 7, .run_id = "test", .program_version = "0", .model = model,
                          .collectives = single_rank_collectives()},
                         parameters);
}

inline std::vector<std::int64_t> random_tokens(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int64_t>(random_bits(9, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(vocabulary)));
  }
  return tokens;
}

/// A folder of a test's own that goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "paceline-infer-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

/// The message of the exception that `action` throws; empty when it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace paceline
