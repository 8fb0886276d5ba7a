#include "fuzz_target.h"

#include "paceline/checkpoint/manifest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace paceline {
namespace {

/// The same document with a right checksum, which mutations never hit.
std::string sealed(const std::string& text) {
  nlohmann::json node = nlohmann::json::parse(text, nullptr, false);
  if (!node.is_object() || text.size() > 10'000) return text;
  node.erase("xxh3");
  const std::string rest = node.dump();
  node["xxh3"] = fmt::format("{:016x}", XXH3_64bits(rest.data(), rest.size()));
  return node.dump();
}

}  // namespace

void parse_foreign_bytes(std::string_view bytes) {
  const Manifest manifest = parse_manifest(sealed(std::string(bytes)), "manifest.json");
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const auto& [state_name, state] : tensor.states) {
      for (const SavedBlock& block : state.blocks) saved_block_key(state_name, name, block);
    }
  }
  const std::string text = manifest_text(manifest);
  require(manifest_text(parse_manifest(text, "written again")) == text, "written and read back, it differs");
}

std::vector<std::string> seeds() {
  Manifest manifest;
  manifest.program_version = "0";
  manifest.run_id = "seed";
  manifest.step = 3;
  manifest.model = {.vocab_size = 8, .hidden_size = 4, .num_hidden_layers = 1, .num_attention_heads = 1,
                    .num_key_value_heads = 1, .head_dim = 4, .intermediate_size = 4, .max_position_embeddings = 4};
  manifest.layout = {.dp = 2};
  manifest.files = {{"rank_0.safetensors", 24, 5}, {"rank_1.safetensors", 24, 6}};
  const SavedState state = {.type = ElementType::f32,
                            .blocks = {{"rank_0.safetensors", {0, 0}, {2, 4}, 7}, {"rank_1.safetensors", {2, 0}, {6, 4}, 8}}};
  manifest.tensors["a"] = {.shape = {8, 4}, .states = {{"weights", state}}};
  manifest.training_state = {{"step", 3}};
  const std::string text = manifest_text(manifest);
  std::vector<std::string> all = {text};
  const std::string key = "\"training_state\":";
  const std::string before = text.substr(0, text.find(key) + key.size());
  for (std::string& nested : deeply_nested_json(before, ",\"xxh3\":\"0123456789abcdef\"}")) {
    all.push_back(std::move(nested));
  }
  for (std::string& nested : deeply_nested_json(R"({"schema_version":)", "}")) all.push_back(std::move(nested));
  for (const char* number : {"1e300", "1.5", "-1e300", "18446744073709551615", "true"}) {
    std::string changed = text;
    const std::string step = "\"step\": 3,\n \"tensors\"";
    const std::size_t at = changed.find(step);
    if (at != std::string::npos) all.push_back(changed.replace(at + 8, 1, number));
  }
  return all;
}

}  // namespace paceline
