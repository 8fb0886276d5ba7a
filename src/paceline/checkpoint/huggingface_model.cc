#include "paceline/checkpoint/huggingface_model.h"

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"
#include "paceline/base/printable.h"
#include "paceline/checkpoint/durable_file.h"
#include "paceline/checkpoint/tensor_storage.h"

#include <ATen/ops/equal.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <re2/re2.h>

#include <set>

namespace paceline {
namespace {

using nlohmann::json;

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* head_name = "lm_head.weight";

std::string base_prefix(ModelFamily family) { return family == ModelFamily::gpt2 ? "transformer." : "model."; }

std::string embedding_name(ModelFamily family) {
  return family == ModelFamily::gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

/// Buffers that older versions of transformers saved beside the weights and that are computed from the configuration.
bool is_computed_buffer(ModelFamily family, const std::string& name) {
  static const RE2 gpt2_mask(R"(transformer\.h\.\d+\.attn\.(bias|masked_bias))");
  static const RE2 llama_frequencies(
      R"(model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.rotary_emb\.inv_freq)");
  return RE2::FullMatch(name, family == ModelFamily::gpt2 ? gpt2_mask : llama_frequencies);
}

/// The files of a sharded model by its index: file names in order, and the tensors that each must hold.
std::map<std::string, std::vector<std::string>> read_index(const std::filesystem::path& path) {
  const json index = parse_json(read_text(path));
  if (index.is_discarded() || !index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail("{} is no index of shards: it has no object 'weight_map'", path.string());
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) fail("{}: weight_map['{}'] is no file name", path.string(), printable(tensor));
    const std::string name = file.get<std::string>();
    if (name.empty() || std::filesystem::path(name).filename() != name) {
      fail("{}: tensor '{}' is said to be in '{}', outside the model's folder", path.string(), printable(tensor),
           printable(name));
    }
    files[name].push_back(tensor);
  }
  return files;
}

bool is_floating(ElementType type) {
  return type == ElementType::f16 || type == ElementType::bf16 || type == ElementType::f32 || type == ElementType::f64;
}

}  // namespace

std::vector<GlobalTensor> global_tensors(const std::vector<Parameter>& parameters) {
  std::vector<GlobalTensor> tensors;
  std::set<std::string> seen;
  for (const Parameter& parameter : parameters) {
    for (const Block& block : parameter.blocks) {
      if (seen.insert(block.tensor).second) tensors.push_back({block.tensor, block.global_shape});
    }
  }
  return tensors;
}

HuggingFaceModel::HuggingFaceModel(const std::filesystem::path& folder) : folder_(folder) {
  const std::filesystem::path config_path = folder / "config.json";
  if (!std::filesystem::exists(config_path)) {
    const bool original = std::filesystem::exists(folder / "params.json");
    fail("{} has no config.json{}", folder.string(),
         original ? ": it holds Meta's original format, whose query and key rows are in another order; take the "
                    "repository in "
                    "Hugging Face's format"
                  : "");
  }
  config_ = parse_huggingface_config(read_text(config_path), config_path);

  if (std::filesystem::exists(folder / single_file)) {
    files_.emplace_back(folder / single_file);
    for (const SafetensorsTensor& tensor : files_[0].tensors()) found_[tensor.name] = {0, tensor.name};
    return;
  }
  if (!std::filesystem::exists(folder / index_file)) {
    const bool pickled = std::filesystem::exists(folder / "pytorch_model.bin") ||
                         std::filesystem::exists(folder / "pytorch_model.bin.index.json");
    fail("{} has neither {} nor {}{}", folder.string(), single_file, index_file,
         pickled ? ": pytorch_model.bin is a pickle, which can run code when it is opened, and is not read; save it as "
                   "safetensors"
                 : "");
  }
  for (const auto& [name, tensors] : read_index(folder / index_file)) {
    if (!std::filesystem::exists(folder / name)) {
      fail("{} names the shard {}, which is missing", (folder / index_file).string(), name);
    }
    files_.emplace_back(folder / name);
    const SafetensorsFile& file = files_.back();
    for (const std::string& tensor : tensors) {
      if (file.find(tensor) == nullptr) {
        fail("{} says that tensor '{}' is in {}, which does not hold it", (folder / index_file).string(), tensor, name);
      }
    }
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const auto [place, is_new] = found_.insert({tensor.name, {files_.size() - 1, tensor.name}});
      if (!is_new) {
        fail("tensor '{}' is in two shards: {} and {}", printable(tensor.name),
             files_[place->second.file].path().string(), file.path().string());
      }
    }
  }
}

void HuggingFaceModel::check_tied_head(const Place& head, const std::string& table) {
  const auto place = matched_.find(table);
  const SafetensorsFile& file = files_[head.file];
  if (place == matched_.end()) {
    // Of two names for one tensor, savers keep either.
    matched_[table] = head;
    return;
  }
  const SafetensorsFile& table_file = files_[place->second.file];
  const at::Tensor a = mapped_tensor(file, *file.find(head.name));
  const at::Tensor b = mapped_tensor(table_file, *table_file.find(place->second.name));
  if (a.scalar_type() != b.scalar_type() || !at::equal(a, b)) {
    fail("{}: '{}' differs from '{}', but {} says tie_word_embeddings: set it to false or remove the head",
         file.path().string(), head.name, place->second.name, (folder_ / "config.json").string());
  }
  skipped_.push_back(head.name);
}

void HuggingFaceModel::match(const std::vector<GlobalTensor>& expected) {
  const ModelFamily family = config_.model.family;
  const std::string prefix = base_prefix(family);
  std::map<std::string, Shape> shapes;
  for (const GlobalTensor& tensor : expected) shapes[tensor.name] = tensor.shape;

  std::optional<Place> tied_head;
  for (const auto& [name, place] : found_) {
    const std::string full = name.starts_with(prefix) || name == head_name ? name : prefix + name;
    const SafetensorsFile& file = files_[place.file];
    if (is_computed_buffer(family, full)) {
      skipped_.push_back(name);
      continue;
    }
    if (name == head_name && !shapes.contains(name) && shapes.contains(embedding_name(family))) {
      tied_head = place;
      continue;
    }
    const auto shape = shapes.find(full);
    if (shape == shapes.end()) {
      fail("{}: tensor '{}' is unexpected: the model that {} describes does not take it", file.path().string(),
           printable(name), (folder_ / "config.json").string());
    }
    if (!matched_.insert({full, place}).second) {
      fail("{}: tensor '{}' is there twice, with and without '{}'", file.path().string(), full, prefix);
    }
  }
  if (tied_head) check_tied_head(*tied_head, embedding_name(family));

  for (const GlobalTensor& tensor : expected) {
    const auto place = matched_.find(tensor.name);
    if (place == matched_.end()) {
      fail("{} lacks the tensor '{}'{}", folder_.string(), tensor.name,
           tensor.name == head_name ? ", and its config.json says that the head is not tied to the embedding" : "");
    }
    const SafetensorsFile& file = files_[place->second.file];
    const SafetensorsTensor& found = *file.find(place->second.name);
    if (found.shape != tensor.shape) {
      fail("{}: tensor '{}' has shape [{}], but config.json asks for [{}]", file.path().string(), found.name,
           fmt::join(found.shape, ", "), fmt::join(tensor.shape, ", "));
    }
    if (!is_floating(found.type)) {
      fail("{}: tensor '{}' has dtype {}; weights are read from F32, F64, BF16 and F16", file.path().string(),
           found.name, element_type_name(found.type));
    }
  }
}

at::Tensor HuggingFaceModel::read_tensor(const std::string& name) const {
  const Place& place = matched_.at(name);
  const SafetensorsFile& file = files_[place.file];
  return mapped_tensor(file, *file.find(place.name));
}

ElementType HuggingFaceModel::common_type() const {
  std::set<ElementType> types;
  for (const auto& [name, place] : matched_) types.insert(files_[place.file].find(place.name)->type);
  return types.size() == 1 ? *types.begin() : ElementType::f32;
}

namespace {

std::string torch_dtype_name(ElementType type) {
  switch (type) {
    case ElementType::f32:
      return "float32";
    case ElementType::f64:
      return "float64";
    case ElementType::bf16:
      return "bfloat16";
    case ElementType::f16:
      return "float16";
    default:
      PACELINE_CHECK(false);
      return "";
  }
}

std::uint64_t bytes_of(const GlobalTensor& tensor, ElementType type) {
  std::uint64_t bytes = static_cast<std::uint64_t>(element_bits(type)) / 8;
  for (const std::int64_t size : tensor.shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

void write_shard(const std::filesystem::path& path, const HuggingFaceExport& model,
                 const std::vector<GlobalTensor>& tensors) {
  at::Tensor current;
  const at::ScalarType type = scalar_type_of(model.type, path.string());
  std::vector<SafetensorsEntry> entries;
  for (const GlobalTensor& tensor : tensors) {
    entries.push_back(
        {.name = tensor.name, .type = model.type, .shape = tensor.shape, .content = [&, name = tensor.name] {
           current = contiguous_values(model.read(name).to(type));
           return tensor_bytes(current);
         }});
  }
  write_safetensors(path, {}, entries);
}

/// The tokenizer's own files, and where only tokenizer.json is there the few lines that AutoTokenizer needs.
void write_tokenizer(const std::filesystem::path& folder, const HuggingFaceExport& model) {
  const std::filesystem::path& source = model.tokenizer_folder;
  if (source.empty() || !std::filesystem::exists(source / "tokenizer.json")) return;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    if (std::filesystem::exists(source / name)) write_durably(folder / name, read_text(source / name));
  }
  if (std::filesystem::exists(source / "tokenizer_config.json")) return;
  json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", model.config.model.max_position_embeddings},
                 {"clean_up_tokenization_spaces", false}};
  const json tokenizer = parse_json(read_text(source / "tokenizer.json"));
  if (!tokenizer.is_object()) fail("{} is no valid JSON object", (source / "tokenizer.json").string());
  if (const auto id = model.config.eos_token_ids; !id.empty() && tokenizer.contains("added_tokens")) {
    for (const json& token : tokenizer["added_tokens"]) {
      if (token.is_object() && token.value("id", json()) == id.front()) config["eos_token"] = token.value("content", json());
    }
  }
  write_durably(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace

void write_huggingface_model(const std::filesystem::path& folder, const HuggingFaceExport& model) {
  std::filesystem::create_directories(folder);
  HuggingFaceConfig config = model.config;
  config.dtype = torch_dtype_name(model.type);

  std::vector<std::vector<GlobalTensor>> shards(1);
  std::uint64_t shard_bytes = 0;
  std::uint64_t total_bytes = 0;
  for (const GlobalTensor& tensor : model.tensors) {
    const std::uint64_t bytes = bytes_of(tensor, model.type);
    if (shard_bytes + bytes > model.max_shard_bytes && !shards.back().empty()) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor);
    shard_bytes += bytes;
    total_bytes += bytes;
  }
  if (shards.size() == 1) {
    write_shard(folder / single_file, model, shards[0]);
  } else {
    json weight_map = json::object();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      write_shard(folder / name, model, shards[i]);
      for (const GlobalTensor& tensor : shards[i]) weight_map[tensor.name] = name;
    }
    const json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    write_durably(folder / index_file, index.dump(2) + "\n");
  }
  json generation = json::object();
  if (config.bos_token_id) generation["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) generation["eos_token_id"] = config.eos_token_ids.front();
  if (config.eos_token_ids.size() > 1) generation["eos_token_id"] = config.eos_token_ids;
  if (config.pad_token_id) generation["pad_token_id"] = *config.pad_token_id;
  write_durably(folder / "generation_config.json", generation.dump(2) + "\n");
  write_tokenizer(folder, model);
  write_durably(folder / "config.json", huggingface_config_text(config));
}

}  // namespace paceline
