#include "paceline/run/prepared_run.h"

#include "paceline/arch/huggingface_config.h"
#include "paceline/base/error.h"
#include "paceline/data/token_loader.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace paceline {
namespace {

DecayShape decay_shape(const std::string& kind) {
  if (kind == "constant") return DecayShape::constant;
  if (kind == "linear") return DecayShape::linear;
  if (kind == "wsd") return DecayShape::wsd;
  return DecayShape::cosine;
}

}  // namespace

LearningRateSettings resolve_learning_rate(const RunSettings& settings) {
  LearningRateSettings rate{.peak = settings.optimizer.learning_rate,
                            .minimum = settings.optimizer.learning_rate * settings.learning_rate.minimum_ratio,
                            .warmup_steps = settings.learning_rate.warmup_steps,
                            .total_steps = settings.train.steps,
                            .decay_steps = settings.learning_rate.decay_steps,
                            .shape = decay_shape(settings.learning_rate.kind)};
  check_learning_rate(rate);
  return rate;
}

ModelConfig prepare_model(const RunSettings& settings, std::int64_t data_vocab_size) {
  if (settings.model.from.empty()) return resolve_model(settings, data_vocab_size);
  const std::filesystem::path path = std::filesystem::path(settings.model.from) / "config.json";
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    refuse("model.from: {} cannot be read; give a Hugging Face folder with config.json and model.safetensors", path.string());
  }
  ModelConfig model = parse_huggingface_config(text.str(), path).model;
  if (model.max_position_embeddings < settings.train.sequence_length) {
    refuse("train.sequence_length {} is longer than max_position_embeddings {} of {}", settings.train.sequence_length,
           model.max_position_embeddings, path.string());
  }
  return model;
}

PreparedRun prepare_run(const RunSettings& settings) {
  PreparedRun run;
  run.settings = settings;
  if (settings.data.folder.empty()) refuse("data.folder is empty: name the folder that `paceline data build` wrote");
  if (!std::filesystem::exists(std::filesystem::path(settings.data.folder) / "manifest.json")) {
    refuse("data.folder {} has no manifest.json: name the folder that `paceline data build` wrote", settings.data.folder);
  }
  run.manifest = read_manifest(settings.data.folder);
  verify_data_files(run.manifest, settings.data.folder, /*checksums=*/false);
  run.model = prepare_model(settings, run.manifest.vocabulary_size);
  require_vocabulary_fits(run.manifest, run.model.vocab_size);
  run.step = resolve_step(settings, run.model);
  for (int pp = 0; pp < run.layout().pp; ++pp) {
    build_rank_program(run.model, run.step.parallel, {.pp = pp});  // refuses layouts that the model does not allow
  }
  run.learning_rate = resolve_learning_rate(settings);

  const std::filesystem::path folder = settings.data.folder;
  const auto require_shard = [&](const char* key, const std::string& name) {
    const bool exists = std::any_of(run.manifest.shards.begin(), run.manifest.shards.end(),
                                    [&](const ManifestShard& shard) { return shard.name == name; });
    if (!exists) {
      std::vector<std::string> names;
      for (const ManifestShard& shard : run.manifest.shards) names.push_back(shard.name);
      refuse("{} is '{}', but {} has only: {}", key, name, folder.string(), fmt::join(names, ", "));
    }
    const ManifestShard& shard = run.manifest.shard(name);
    if (shard.summary.maximum_token >= run.model.vocab_size) {
      refuse("{}: holds token {}, beyond the model's vocabulary of {}", (folder / (name + ".bin")).string(),
             shard.summary.maximum_token, run.model.vocab_size);
    }
    TokenLoader(folder / name, settings.train.sequence_length, 0, false);  // refuses a shard without one whole sample
    return folder / name;
  };
  run.train_prefix = require_shard("data.train", settings.data.train);
  if (!settings.data.held_out.empty()) run.held_out_prefix = require_shard("data.held_out", settings.data.held_out);
  return run;
}

}  // namespace paceline
