#include "paceline/checkpoint/manifest.h"

#include "paceline/arch/huggingface_config.h"
#include "paceline/base/error.h"
#include "paceline/base/json_text.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <set>

namespace paceline {
namespace {

using nlohmann::json;

std::string checksum_text(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

std::uint64_t parse_checksum(const json& text) {
  const std::string digits = text.get<std::string>();
  std::size_t used = 0;
  const std::uint64_t value = std::stoull(digits, &used, 16);
  if (used != 16 || digits.size() != 16) throw std::invalid_argument("checksum");
  return value;
}

std::string region_text(const Shape& begin, const Shape& extent) {
  std::string text = "[";
  for (std::size_t i = 0; i < begin.size(); ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", begin[i], begin[i] + extent[i]);
  }
  return text + "]";
}

bool regions_overlap(const SavedBlock& a, const SavedBlock& b) {
  for (std::size_t i = 0; i < a.begin.size(); ++i) {
    if (a.begin[i] >= b.begin[i] + b.extent[i] || b.begin[i] >= a.begin[i] + a.extent[i]) return false;
  }
  return true;
}

std::int64_t product(const Shape& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) throw std::invalid_argument("shape");
  }
  return elements;
}

json tensors_json(const Manifest& manifest) {
  json tensors = json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    json states = json::object();
    for (const auto& [state_name, state] : tensor.states) {
      json blocks = json::array();
      for (const SavedBlock& block : state.blocks) {
        blocks.push_back({{"file", block.file},
                          {"begin", block.begin},
                          {"extent", block.extent},
                          {"xxh3", checksum_text(block.checksum)}});
      }
      states[state_name] = {{"dtype", element_type_name(state.type)}, {"blocks", std::move(blocks)}};
    }
    tensors[name] = {{"shape", tensor.shape}, {"states", std::move(states)}};
  }
  return tensors;
}

Shape parse_shape(const json& node) {
  Shape shape;
  for (const json& size : node) shape.push_back(whole_number<std::int64_t>(size));
  return shape;
}

SavedTensor parse_tensor(const json& node) {
  SavedTensor tensor;
  tensor.shape = parse_shape(node.at("shape"));
  product(tensor.shape);
  for (const auto& [state_name, state_node] : node.at("states").items()) {
    SavedState& state = tensor.states[state_name];
    const std::string type = state_node.at("dtype").get<std::string>();
    if (!parse_element_type(type, state.type)) throw std::invalid_argument("dtype " + type);
    for (const json& block_node : state_node.at("blocks")) {
      SavedBlock block{.file = block_node.at("file").get<std::string>(),
                       .begin = parse_shape(block_node.at("begin")),
                       .extent = parse_shape(block_node.at("extent")),
                       .checksum = parse_checksum(block_node.at("xxh3"))};
      product(block.extent);
      state.blocks.push_back(std::move(block));
    }
  }
  return tensor;
}

/// The document without its checksum; keys are sorted and numbers print shortest, so a parsed document prints the same.
json document(const Manifest& manifest) {
  json files = json::array();
  for (const SavedFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", checksum_text(file.checksum)}});
  }
  return {{"schema_version", checkpoint_schema_version},
          {"program_version", manifest.program_version},
          {"run_id", manifest.run_id},
          {"step", manifest.step},
          {"model", json::parse(huggingface_config_text({.model = manifest.model}))},
          {"layout", manifest.layout.text()},
          {"files", std::move(files)},
          {"tensors", tensors_json(manifest)},
          {"training_state", manifest.training_state}};
}

std::uint64_t document_checksum(const json& node) {
  const std::string text = node.dump();
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace

bool Manifest::has_state(const std::string& state) const {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.states.contains(state)) return false;
  }
  return true;
}

std::string saved_block_key(const std::string& state, const std::string& tensor, const SavedBlock& block) {
  return fmt::format("{}/{}{}", state, tensor, region_text(block.begin, block.extent));
}

std::string manifest_text(const Manifest& manifest) {
  json node = document(manifest);
  node["xxh3"] = checksum_text(document_checksum(node));
  return node.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const std::string where = path.string();
  Manifest manifest;
  json node = parse_json(text);
  if (node.is_discarded() || !node.is_object()) fail("{} is no valid JSON object: damaged or truncated", where);
  try {
    const std::int64_t schema = whole_number<std::int64_t>(node.at("schema_version"));
    if (schema > checkpoint_schema_version) {
      fail("{} has schema version {}, this program reads up to {}: written by Paceline {}, use that or a later one",
           where, schema, checkpoint_schema_version, node.value("program_version", "of another version"));
    }
    const std::uint64_t checksum = parse_checksum(node.at("xxh3"));
    node.erase("xxh3");
    if (document_checksum(node) != checksum) fail("{} does not match its own checksum: damaged or edited", where);
    manifest.program_version = node.at("program_version").get<std::string>();
    manifest.run_id = node.at("run_id").get<std::string>();
    manifest.step = whole_number<std::int64_t>(node.at("step"));
    manifest.model = parse_huggingface_config(node.at("model").dump(), path).model;
    manifest.layout = parse_layout(node.at("layout").get<std::string>());
    for (const json& file : node.at("files")) {
      manifest.files.push_back({.name = file.at("name").get<std::string>(),
                                .bytes = whole_number<std::uint64_t>(file.at("bytes")),
                                .checksum = parse_checksum(file.at("xxh3"))});
      if (std::filesystem::path(manifest.files.back().name).filename() != manifest.files.back().name) {
        fail("{} names the file '{}' outside its folder", where, manifest.files.back().name);
      }
    }
    for (const auto& [name, tensor] : node.at("tensors").items()) manifest.tensors[name] = parse_tensor(tensor);
    manifest.training_state = node.at("training_state");
  } catch (const json::exception& error) {
    fail("{} is no manifest of a checkpoint: {}", where, error.what());
  } catch (const std::logic_error& error) {
    fail("{} is no manifest of a checkpoint: {}", where, error.what());
  }
  check_tiling(manifest, where);
  return manifest;
}

void check_tiling(const Manifest& manifest, const std::string& where) {
  std::set<std::string> files;
  for (const SavedFile& file : manifest.files) files.insert(file.name);
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const auto& [state_name, state] : tensor.states) {
      std::int64_t covered = 0;
      for (std::size_t i = 0; i < state.blocks.size(); ++i) {
        const SavedBlock& block = state.blocks[i];
        bool inside = block.begin.size() == tensor.shape.size() && block.extent.size() == tensor.shape.size();
        for (std::size_t d = 0; inside && d < tensor.shape.size(); ++d) {
          inside = block.begin[d] >= 0 && block.extent[d] <= tensor.shape[d] &&
                   block.begin[d] <= tensor.shape[d] - block.extent[d];
        }
        if (!inside) {
          fail("{}: a block of {} '{}' lies outside the tensor's shape [{}]", where, state_name, name,
               fmt::join(tensor.shape, ", "));
        }
        if (!files.contains(block.file))
          fail("{}: tensor '{}' is in '{}', which is no file of it", where, name, block.file);
        for (std::size_t other = 0; other < i; ++other) {
          if (regions_overlap(block, state.blocks[other])) {
            fail("{}: {} '{}' holds {} twice", where, state_name, name, region_text(block.begin, block.extent));
          }
        }
        covered += product(block.extent);
      }
      if (covered != product(tensor.shape)) {
        fail("{}: {} '{}' holds {} of the {} elements of its shape [{}]", where, state_name, name, covered,
             product(tensor.shape), fmt::join(tensor.shape, ", "));
      }
    }
  }
}

}  // namespace paceline
