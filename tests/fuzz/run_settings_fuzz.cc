#include "fuzz_target.h"

#include "paceline/config/run_settings.h"

namespace paceline {

/// A first line that begins with "#set " is an override on the command line.
void parse_foreign_bytes(std::string_view bytes) {
  std::vector<std::string> overrides;
  if (bytes.starts_with("#set ")) overrides.emplace_back(bytes.substr(5, bytes.find('\n') - 5));
  const RunSettings settings = parse_run_settings(std::string(bytes), "run.toml", overrides);
  const std::string text = to_toml(settings);
  require(to_toml(parse_run_settings(text, "written again", {})) == text, "written and read back, they differ");
  resolve_parallel(settings);
  resolve_model(settings, 8192);
}

std::vector<std::string> seeds() {
  const std::string folder = "[run]\nfolder = \"r\"\n";
  std::vector<std::string> all = {
      folder + "[model]\nhidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4\n[train]\nsteps = 5\n",
      "#set parallel.tp=2\n" + folder + "[parallel]\nlayers_per_stage = [1, 2]\n[train]\nfrozen = ['a.*']\n",
      "#set model.family=gpt2\n" + folder,
      folder + "[model]\nhidden_size = 9223372036854775807\nnum_attention_heads = 1\n",
      folder + "[model]\nfamily = 'gpt2'\nhidden_size = 9223372036854775807\nnum_attention_heads = 1\n",
      folder + "[parallel]\ndp = 4294967296\n",
      folder + "[parallel]\nbucket_mb = inf\n",
      folder + "[learning_rate]\nminimum_ratio = nan\n",
      "a = " + std::string(200'000, '[') + std::string(200'000, ']'),
      "a = " + std::string(200'000, '['),
      "#set train.frozen=" + std::string(200'000, '[') + "\n" + folder,
  };
  for (const char* ending : {" = 1", "\n"}) {
    std::string dotted = "a";
    for (int i = 0; i < 100'000; ++i) dotted += ".a";
    all.push_back(*ending == '\n' ? "[" + dotted + "]\n" : dotted + ending);
  }
  return all;
}

}  // namespace paceline
