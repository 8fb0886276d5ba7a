#include "paceline/arch/huggingface_config.h"

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace paceline {
namespace {

using nlohmann::json;

/// Keys of a JSON object with errors that name file and key. A null counts as absent, as in transformers.
class Keys {
 public:
  Keys(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::int64_t integer(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) fail("{} has no '{}'", where_, key);
    return to_integer(key, *value);
  }
  std::int64_t integer(const char* key, std::int64_t absent) const {
    const json* value = find(key);
    return value == nullptr ? absent : to_integer(key, *value);
  }
  double number(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) fail("{} has no '{}'", where_, key);
    if (!value->is_number()) wrong(key, *value, "a number");
    return value->get<double>();
  }
  double number(const char* key, double absent) const { return find(key) == nullptr ? absent : number(key); }
  bool boolean(const char* key, bool absent) const {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) wrong(key, *value, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& absent) const {
    const json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_string()) wrong(key, *value, "a string");
    return value->get<std::string>();
  }
  [[noreturn]] void wrong(const char* key, const json& value, const char* expected) const {
    fail("{}: '{}' is {} where {} was expected", where_, key, value.dump(), expected);
  }
  const std::string& where() const { return where_; }

 private:
  std::int64_t to_integer(const char* key, const json& value) const {
    if (!value.is_number_integer()) wrong(key, value, "a whole number");
    constexpr std::int64_t largest = std::int64_t{1} << 31;
    if ((value.is_number_unsigned() && value.get<std::uint64_t>() > largest) || value.get<std::int64_t>() > largest) {
      wrong(key, value, "a number below 2^31");
    }
    return value.get<std::int64_t>();
  }

  const json& object_;
  std::string where_;
};

std::int64_t divide_heads(const Keys& keys, const char* size_key, std::int64_t size, const char* heads_key,
                          std::int64_t heads) {
  if (heads < 1 || size < 1 || size % heads != 0) {
    fail("{}: {} {} is no multiple of {} {}", keys.where(), size_key, size, heads_key, heads);
  }
  return size / heads;
}

/// Frequencies of rotary embeddings: transformers 5 writes `rope_parameters`, older ones `rope_theta` and
/// `rope_scaling`.
void read_rope(const Keys& keys, HuggingFaceConfig& config) {
  ModelConfig& model = config.model;
  model.rope_theta = keys.number("rope_theta", 10000.0);
  bool partial = keys.find("partial_rotary_factor") != nullptr;
  const bool both = keys.find("rope_parameters") != nullptr && keys.find("rope_scaling") != nullptr;
  std::optional<RopeScaling> first;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* node = keys.find(key);
    if (node == nullptr) continue;
    if (!node->is_object()) keys.wrong(key, *node, "an object");
    const Keys rope(*node, fmt::format("{}: {}", keys.where(), key));
    partial = partial || rope.find("partial_rotary_factor") != nullptr;
    if (rope.find("rope_theta") != nullptr) {
      const double theta = rope.number("rope_theta");
      if (keys.find("rope_theta") != nullptr && theta != model.rope_theta) {
        fail("{}: rope_theta is {} and {}.rope_theta is {}: make them equal", keys.where(), model.rope_theta, key,
             theta);
      }
      model.rope_theta = theta;
    }
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    model.rope_scaling.reset();
    if (type == "llama3") {
      model.rope_scaling = RopeScaling{
          .factor = rope.number("factor"),
          .low_freq_factor = rope.number("low_freq_factor"),
          .high_freq_factor = rope.number("high_freq_factor"),
          .original_max_position_embeddings = rope.integer("original_max_position_embeddings"),
      };
      const RopeScaling& scaling = *model.rope_scaling;
      if (!(scaling.factor >= 1) || !(scaling.low_freq_factor > 0) ||
          !(scaling.high_freq_factor > scaling.low_freq_factor) || scaling.original_max_position_embeddings < 1) {
        fail(
            "{}: factor must be at least 1, high_freq_factor above low_freq_factor above 0 and "
            "original_max_position_embeddings at least 1",
            rope.where());
      }
    } else if (type != "default") {
      fail("{}: {} of type '{}' is not built: 'default' and 'llama3' are", keys.where(), key, type);
    }
    if (std::string(key) == "rope_parameters") {
      first = model.rope_scaling;
    } else if (both && first != model.rope_scaling) {
      fail("{}: rope_parameters and rope_scaling contradict each other", keys.where());
    }
  }
  if (partial) {
    config.warnings.push_back(
        "partial_rotary_factor is ignored: model type llama turns whole heads, as in transformers");
  }
}

void read_llama(const Keys& keys, HuggingFaceConfig& config) {
  ModelConfig& model = config.model;
  model.family = ModelFamily::llama;
  model.vocab_size = keys.integer("vocab_size");
  model.hidden_size = keys.integer("hidden_size");
  model.num_hidden_layers = keys.integer("num_hidden_layers");
  model.num_attention_heads = keys.integer("num_attention_heads");
  model.num_key_value_heads = keys.integer("num_key_value_heads", model.num_attention_heads);
  model.intermediate_size = keys.integer("intermediate_size");
  model.max_position_embeddings = keys.integer("max_position_embeddings", 2048);
  model.head_dim = keys.find("head_dim") != nullptr ? keys.integer("head_dim")
                                                    : divide_heads(keys, "hidden_size", model.hidden_size,
                                                                   "num_attention_heads", model.num_attention_heads);
  model.norm_epsilon = keys.number("rms_norm_eps", 1e-6);
  model.tie_word_embeddings = keys.boolean("tie_word_embeddings", false);
  model.attention_bias = keys.boolean("attention_bias", false);
  model.mlp_bias = keys.boolean("mlp_bias", false);
  const std::string activation = keys.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fail("{}: hidden_act '{}' is not built for llama: 'silu' is", keys.where(), activation);
  }
  model.activation = "silu";
  read_rope(keys, config);
}

void read_gpt2(const Keys& keys, HuggingFaceConfig& config) {
  ModelConfig& model = config.model;
  model.family = ModelFamily::gpt2;
  model.vocab_size = keys.integer("vocab_size");
  model.hidden_size = keys.integer("n_embd");
  model.num_hidden_layers = keys.integer("n_layer");
  model.num_attention_heads = keys.integer("n_head");
  model.num_key_value_heads = model.num_attention_heads;
  model.head_dim = divide_heads(keys, "n_embd", model.hidden_size, "n_head", model.num_attention_heads);
  model.intermediate_size = keys.integer("n_inner", 4 * model.hidden_size);
  model.max_position_embeddings = keys.integer("n_positions");
  model.norm_epsilon = keys.number("layer_norm_epsilon", 1e-5);
  model.tie_word_embeddings = keys.boolean("tie_word_embeddings", true);
  const std::string activation = keys.text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    model.activation = "gelu_new";
  } else if (activation == "gelu") {
    model.activation = "gelu";
  } else {
    fail("{}: activation_function '{}' is not built for gpt2: 'gelu_new' and 'gelu' are", keys.where(), activation);
  }
  if (!keys.boolean("scale_attn_weights", true)) fail("{}: scale_attn_weights false is not built", keys.where());
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (keys.boolean(key, false)) fail("{}: {} true is not built", keys.where(), key);
  }
}

void read_token_ids(const Keys& keys, HuggingFaceConfig& config) {
  if (const json* bos = keys.find("bos_token_id"); bos != nullptr && bos->is_number_integer()) {
    config.bos_token_id = bos->get<std::int64_t>();
  }
  if (const json* pad = keys.find("pad_token_id"); pad != nullptr && pad->is_number_integer()) {
    config.pad_token_id = pad->get<std::int64_t>();
  }
  const json* eos = keys.find("eos_token_id");
  if (eos == nullptr) return;
  if (eos->is_number_integer()) config.eos_token_ids = {eos->get<std::int64_t>()};
  if (eos->is_array()) {
    for (const json& id : *eos) {
      if (!id.is_number_integer()) keys.wrong("eos_token_id", *eos, "a whole number or a list of them");
      config.eos_token_ids.push_back(id.get<std::int64_t>());
    }
  }
}

json model_json(const ModelConfig& model) {
  if (model.family == ModelFamily::gpt2) {
    return {
        {"model_type", "gpt2"},
        {"architectures", {"GPT2LMHeadModel"}},
        {"vocab_size", model.vocab_size},
        {"n_embd", model.hidden_size},
        {"n_layer", model.num_hidden_layers},
        {"n_head", model.num_attention_heads},
        {"n_inner", model.intermediate_size},
        {"n_positions", model.max_position_embeddings},
        {"n_ctx", model.max_position_embeddings},
        {"layer_norm_epsilon", model.norm_epsilon},
        {"activation_function", model.activation},
        {"initializer_range", model.initializer_range},
        {"tie_word_embeddings", model.tie_word_embeddings},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
    };
  }
  json scaling = nullptr;
  json parameters = {{"rope_type", "default"}};
  if (model.rope_scaling) {
    scaling = {{"rope_type", "llama3"},
               {"factor", model.rope_scaling->factor},
               {"low_freq_factor", model.rope_scaling->low_freq_factor},
               {"high_freq_factor", model.rope_scaling->high_freq_factor},
               {"original_max_position_embeddings", model.rope_scaling->original_max_position_embeddings}};
    parameters = scaling;
  }
  parameters["rope_theta"] = model.rope_theta;
  return {
      {"model_type", "llama"},
      {"architectures", {"LlamaForCausalLM"}},
      {"vocab_size", model.vocab_size},
      {"hidden_size", model.hidden_size},
      {"num_hidden_layers", model.num_hidden_layers},
      {"num_attention_heads", model.num_attention_heads},
      {"num_key_value_heads", model.num_key_value_heads},
      {"head_dim", model.head_dim},
      {"intermediate_size", model.intermediate_size},
      {"max_position_embeddings", model.max_position_embeddings},
      {"rms_norm_eps", model.norm_epsilon},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", scaling},
      {"rope_parameters", parameters},
      {"attention_bias", model.attention_bias},
      {"attention_dropout", 0.0},
      {"mlp_bias", model.mlp_bias},
      {"hidden_act", model.activation},
      {"initializer_range", model.initializer_range},
      {"tie_word_embeddings", model.tie_word_embeddings},
  };
}

}  // namespace

HuggingFaceConfig parse_huggingface_config(const std::string& text, const std::filesystem::path& path) {
  const json node = parse_json(text);
  if (node.is_discarded() || !node.is_object()) fail("{} is no valid JSON object", path.string());
  const Keys keys(node, path.string());
  HuggingFaceConfig config;
  const std::string type = keys.text("model_type", "");
  if (type.empty()) fail("{} has no 'model_type'", path.string());
  if (keys.find("quantization_config") != nullptr) {
    fail("{}: quantised weights (quantization_config) are not read: save the model unquantised first", path.string());
  }
  if (type == "llama") {
    read_llama(keys, config);
  } else if (type == "gpt2") {
    read_gpt2(keys, config);
  } else {
    fail("{}: model_type '{}' is not built: 'llama' and 'gpt2' are", path.string(), type);
  }
  config.model.initializer_range = keys.number("initializer_range", 0.02);
  constexpr std::int64_t most_layers = 100'000;
  if (config.model.num_hidden_layers > most_layers) {
    fail("{}: {} layers are more than any model has", path.string(), config.model.num_hidden_layers);
  }
  config.dtype = keys.text("dtype", keys.text("torch_dtype", ""));
  read_token_ids(keys, config);
  try {
    validate(config.model);
  } catch (const Error& error) {
    fail("{}: {}", path.string(), error.what());
  }
  return config;
}

std::string huggingface_config_text(const HuggingFaceConfig& config) {
  json node = model_json(config.model);
  if (!config.dtype.empty()) node["dtype"] = node["torch_dtype"] = config.dtype;
  node["bos_token_id"] = config.bos_token_id ? json(*config.bos_token_id) : json(nullptr);
  node["pad_token_id"] = config.pad_token_id ? json(*config.pad_token_id) : json(nullptr);
  node["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) node["eos_token_id"] = config.eos_token_ids.front();
  if (config.eos_token_ids.size() > 1) node["eos_token_id"] = config.eos_token_ids;
  return node.dump(2) + "\n";
}

std::optional<ModelDifference> first_difference(const ModelConfig& first, const ModelConfig& second) {
  json a = model_json(first);
  json b = model_json(second);
  if (first.family != second.family) return ModelDifference{"model_type", a["model_type"], b["model_type"]};
  for (const char* key : {"initializer_range", "rope_parameters"}) {
    a.erase(key);
    b.erase(key);
  }
  for (const auto& [key, value] : a.items()) {
    if (value != b.at(key)) return ModelDifference{key, value.dump(), b.at(key).dump()};
  }
  return std::nullopt;
}

}  // namespace paceline
