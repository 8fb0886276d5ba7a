#pragma once

#include "paceline/arch/program.h"
#include "paceline/config/run_settings.h"
#include "paceline/ops/memory_account.h"
#include "paceline/train/model_state.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

struct ModelOptions {
  std::string precision = "fp32";  ///< fp32 or fp64, whatever the files hold
  bool with_gradients = false;
};

/// What a user names as MODEL, whole on one rank: a run's folder (its latest checkpoint), a checkpoint's folder or a Hugging
/// Face folder. A path that is none of them is refused in one line that says what a MODEL may be.
class LoadedModel {
 public:
  explicit LoadedModel(const std::filesystem::path& model, const ModelOptions& options = {});
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const Program& program() const { return program_; }
  const ModelConfig& config() const { return program_.model; }
  ModelState& state() { return *state_; }
  MemoryAccount& account() { return account_; }

  /// The folder that the weights came from.
  const std::filesystem::path& folder() const { return folder_; }
  /// Of a checkpoint; none for a Hugging Face folder.
  const std::optional<std::int64_t>& step() const { return step_; }
  /// Of the run, where MODEL is one or lies in one.
  const std::optional<RunSettings>& settings() const { return settings_; }
  /// The model's tokenizer.json: beside the weights, or in the data that the run was trained on; empty where there is none.
  const std::filesystem::path& tokenizer() const { return tokenizer_; }
  /// Tokens that end a text, as config.json or the data's manifest say; may be empty.
  const std::vector<std::int64_t>& end_of_text_ids() const { return end_of_text_ids_; }
  /// What a user should know about the files, one line each.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void load_checkpoint(const std::filesystem::path& checkpoint, const ModelOptions& options);
  void load_huggingface(const ModelOptions& options);
  void find_run_files();
  void make_state(const ModelConfig& model, const ModelOptions& options);

  MemoryAccount account_;
  Program program_;
  std::unique_ptr<ModelState> state_;
  std::filesystem::path folder_;
  std::optional<std::int64_t> step_;
  std::optional<RunSettings> settings_;
  std::filesystem::path tokenizer_;
  std::vector<std::int64_t> end_of_text_ids_;
  std::vector<std::string> warnings_;
};

}  // namespace paceline
