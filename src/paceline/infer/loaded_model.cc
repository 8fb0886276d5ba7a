#include "paceline/infer/loaded_model.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/checkpoint.h"
#include "paceline/checkpoint/huggingface_model.h"
#include "paceline/data/data_manifest.h"
#include "paceline/parallel/rank_program.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

bool is_checkpoint_or_run(const fs::path& folder) {
  return fs::exists(folder / manifest_file_name) || fs::exists(folder / "checkpoints") || fs::exists(folder / "settings.toml") ||
         folder.filename() == "checkpoints" || folder.parent_path().filename() == "checkpoints";
}

}  // namespace

LoadedModel::LoadedModel(const fs::path& model, const ModelOptions& options) {
  folder_ = model.lexically_normal();
  if (folder_.filename().empty()) folder_ = folder_.parent_path();
  constexpr const char* kinds =
      "a MODEL is a run's folder (with checkpoints/), a checkpoint's folder (with manifest.json) or a Hugging Face folder (with "
      "config.json and model.safetensors)";
  std::error_code ignored;
  if (!fs::exists(folder_, ignored)) refuse("{} does not exist: {}", model.string(), kinds);
  if (!fs::is_directory(folder_, ignored)) refuse("{} is no folder: {}", model.string(), kinds);
  if (is_checkpoint_or_run(folder_)) {
    load_checkpoint(find_checkpoint(folder_), options);
  } else if (fs::exists(folder_ / "config.json") || fs::exists(folder_ / "params.json")) {
    load_huggingface(options);
  } else {
    refuse("{} is no model: {}", model.string(), kinds);
  }
}

void LoadedModel::make_state(const ModelConfig& model, const ModelOptions& options) {
  program_ = build_rank_program(model, {}, {});
  // One bucket: nothing is reduced here.
  state_ = std::make_unique<ModelState>(program_, 0, parse_precision(options.precision),
                                        std::int64_t{1} << 40, options.with_gradients, account_);
  state_->first_moments.reset();
  state_->second_moments.reset();
}

void LoadedModel::load_checkpoint(const fs::path& path, const ModelOptions& options) {
  const Checkpoint checkpoint(path);
  folder_ = path;
  step_ = checkpoint.manifest().step;
  make_state(checkpoint.manifest().model, options);
  std::vector<StoredParameter> parameters;
  for (std::size_t i = 0; i < program_.parameters.size(); ++i) {
    parameters.push_back({&program_.parameters[i], {{"weights", state_->weight(static_cast<int>(i))}}});
  }
  checkpoint.load(parameters, {.convert_types = true});
  find_run_files();
}

void LoadedModel::find_run_files() {
  const fs::path run = folder_.has_parent_path() ? folder_.parent_path().parent_path() : fs::path("..");
  const fs::path settings = run / "settings.toml";
  if (fs::exists(settings)) settings_ = read_run_settings(settings.string(), {});
  if (fs::exists(run / "tokenizer.json")) tokenizer_ = run / "tokenizer.json";
  if (!settings_ || settings_->data.folder.empty()) return;
  const fs::path data = settings_->data.folder;
  if (!fs::exists(data / "manifest.json")) {
    warnings_.push_back(fmt::format("{}: data.folder {} is not there (seen from this folder), so its tokenizer is not either",
                                    settings.string(), data.string()));
    return;
  }
  const DataManifest manifest = read_manifest(data);
  if (tokenizer_.empty()) tokenizer_ = data / manifest.tokenizer_file;
  end_of_text_ids_ = {manifest.end_of_text_id};
}

void LoadedModel::load_huggingface(const ModelOptions& options) {
  HuggingFaceModel model(folder_);
  make_state(model.config().model, options);
  model.match(global_tensors(program_.parameters));
  for (std::size_t i = 0; i < program_.parameters.size(); ++i) {
    for (const Block& block : program_.parameters[i].blocks) {
      scatter(block, model.read_tensor(block.tensor), state_->weight(static_cast<int>(i)));
    }
  }
  if (fs::exists(folder_ / "tokenizer.json")) tokenizer_ = folder_ / "tokenizer.json";
  end_of_text_ids_ = model.config().eos_token_ids;
  warnings_ = model.config().warnings;
}

}  // namespace paceline
