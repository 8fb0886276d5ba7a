#include "paceline/checkpoint/huggingface_model.h"

#include "paceline/base/error.h"
#include "paceline/checkpoint/blocks.h"
#include "paceline/checkpoint/tensor_storage.h"
#include "temporary_folder.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace paceline {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

using Tensors = std::map<std::string, at::Tensor>;

ModelConfig llama(bool tied) {
  return {.family = ModelFamily::llama,
          .vocab_size = 37,
          .hidden_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 8,
          .intermediate_size = 24,
          .max_position_embeddings = 32,
          .norm_epsilon = 1e-6,
          .tie_word_embeddings = tied};
}

ModelConfig gpt2() {
  return {.family = ModelFamily::gpt2,
          .vocab_size = 37,
          .hidden_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 4,
          .head_dim = 4,
          .intermediate_size = 64,
          .max_position_embeddings = 32,
          .tie_word_embeddings = true,
          .activation = "gelu_new"};
}

std::vector<GlobalTensor> tensors_of(const ModelConfig& model) {
  return global_tensors(build_program(model).parameters);
}

Tensors random_tensors(const ModelConfig& model, at::ScalarType type = at::kFloat) {
  Tensors tensors;
  for (const GlobalTensor& tensor : tensors_of(model)) {
    const Parameter parameter{.name = tensor.name,
                              .shape = tensor.shape,
                              .blocks = {{.tensor = tensor.name,
                                          .global_shape = tensor.shape,
                                          .begin = Shape(tensor.shape.size(), 0),
                                          .extent = tensor.shape}}};
    tensors[tensor.name] = at::empty(tensor.shape, type);
    initialize(parameter, 3, tensors[tensor.name]);
  }
  return tensors;
}

void write_tensors(const std::filesystem::path& path, const Tensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, element_type_of(tensor), tensor.sizes().vec(),
                       [values = contiguous_values(tensor)] { return tensor_bytes(values); }});
  }
  write_safetensors(path, {}, entries);
}

class HuggingFaceFolder : public testing::Test {
 protected:
  void write(const ModelConfig& model, const Tensors& tensors) {
    write_file(folder_ / "config.json", huggingface_config_text({.model = model}));
    write_tensors(folder_ / "model.safetensors", tensors);
  }
  std::string match_error(const ModelConfig& model) {
    return error_of([&] { HuggingFaceModel(folder_.path()).match(tensors_of(model)); });
  }
  void expect_read(const ModelConfig& model, const Tensors& tensors) {
    HuggingFaceModel read(folder_.path());
    read.match(tensors_of(model));
    for (const GlobalTensor& tensor : tensors_of(model)) {
      EXPECT_TRUE(at::equal(read.read_tensor(tensor.name), tensors.at(tensor.name))) << tensor.name;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(HuggingFaceFolder, ReadsItsOwnExportWholeAndSharded) {
  for (const ModelConfig& model : {llama(true), llama(false), gpt2()}) {
    const Tensors tensors = random_tensors(model);
    for (const std::uint64_t shard : {std::uint64_t{1} << 30, std::uint64_t{3000}}) {
      TemporaryFolder out;
      write_huggingface_model(out.path(), {.config = {.model = model},
                                           .tensors = tensors_of(model),
                                           .read = [&](const std::string& name) { return tensors.at(name); },
                                           .max_shard_bytes = shard});
      HuggingFaceModel read(out.path());
      EXPECT_EQ(read.config().model, model);
      EXPECT_EQ(read.config().dtype, "float32");
      read.match(tensors_of(model));
      EXPECT_TRUE(read.skipped().empty());
      EXPECT_EQ(read.common_type(), ElementType::f32);
      for (const auto& [name, values] : tensors) EXPECT_TRUE(at::equal(read.read_tensor(name), values)) << name;
      EXPECT_EQ(std::filesystem::exists(out / "model.safetensors"), shard > 3000);
      if (shard > 3000) continue;
      const json index = json::parse(read_file(out / "model.safetensors.index.json"));
      std::uint64_t bytes = 0;
      for (const auto& [name, values] : tensors) bytes += values.nbytes();
      EXPECT_EQ(index["metadata"]["total_size"], bytes);
      EXPECT_EQ(index["weight_map"].size(), tensors.size());
    }
  }
}

TEST_F(HuggingFaceFolder, ExportsTheAskedType) {
  const ModelConfig model = llama(true);
  const Tensors tensors = random_tensors(model);
  std::uint64_t elements = 0;
  for (const auto& [name, values] : tensors) elements += static_cast<std::uint64_t>(values.numel());
  for (const auto& [type, name, size] :
       {std::tuple(ElementType::f32, "float32", 4U), std::tuple(ElementType::bf16, "bfloat16", 2U)}) {
    TemporaryFolder out;
    write_huggingface_model(out.path(), {.config = {.model = model},
                                         .tensors = tensors_of(model),
                                         .read = [&](const std::string& key) { return tensors.at(key); },
                                         .type = type});
    const SafetensorsFile file(out / "model.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    std::uint64_t bytes = 0;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      EXPECT_EQ(tensor.type, type);
      bytes += tensor.end - tensor.begin;
    }
    EXPECT_EQ(bytes, elements * size);
    const json config = json::parse(read_file(out / "config.json"));
    EXPECT_EQ(config["dtype"], name);
    EXPECT_EQ(config["torch_dtype"], name);
    EXPECT_TRUE(at::equal(mapped_tensor(file, *file.find("model.norm.weight")),
                          tensors.at("model.norm.weight").to(type == ElementType::f32 ? at::kFloat : at::kBFloat16)));
  }
}

TEST_F(HuggingFaceFolder, Gpt2WithAndWithoutPrefixAndMasks) {
  const Tensors tensors = random_tensors(gpt2());
  for (const bool prefixed : {true, false}) {
    for (const bool masks : {true, false}) {
      Tensors written;
      const auto name_of = [&](const std::string& name) {
        return prefixed ? name : name.substr(std::string("transformer.").size());
      };
      for (const auto& [name, values] : tensors) written[name_of(name)] = values;
      if (masks) {
        written[name_of("transformer.h.0.attn.bias")] = at::zeros({1, 1, 32, 32}, at::kByte);
        written[name_of("transformer.h.0.attn.masked_bias")] = at::zeros({}, at::kFloat);
      }
      write(gpt2(), written);
      expect_read(gpt2(), tensors);
      HuggingFaceModel read(folder_.path());
      read.match(tensors_of(gpt2()));
      EXPECT_EQ(read.skipped().size(), masks ? 2U : 0U);
    }
  }
  // Only those two names are masks.
  Tensors extra = tensors;
  extra["transformer.h.0.mlp.bias"] = at::zeros({1});
  write(gpt2(), extra);
  EXPECT_THAT(match_error(gpt2()), HasSubstr("tensor 'transformer.h.0.mlp.bias' is unexpected"));
  extra = tensors;
  extra["wte.weight"] = extra.at("transformer.wte.weight");
  write(gpt2(), extra);
  EXPECT_THAT(match_error(gpt2()), HasSubstr("'transformer.wte.weight' is there twice"));
}

TEST_F(HuggingFaceFolder, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  const ModelConfig model = llama(false);
  Tensors tensors = random_tensors(model);
  tensors.erase("model.layers.1.self_attn.k_proj.weight");
  write(model, tensors);
  EXPECT_THAT(match_error(model), HasSubstr("lacks the tensor 'model.layers.1.self_attn.k_proj.weight'"));

  tensors = random_tensors(model);
  tensors["model.layers.0.self_attn.q_proj.bias"] = at::zeros({32});
  write(model, tensors);
  EXPECT_THAT(match_error(model),
              AllOf(HasSubstr("model.safetensors: tensor 'model.layers.0.self_attn.q_proj.bias' is unexpected")));

  tensors = random_tensors(model);
  tensors["model.layers.0.mlp.up_proj.weight"] = at::zeros({16, 24});
  write(model, tensors);
  EXPECT_THAT(match_error(model), AllOf(HasSubstr("'model.layers.0.mlp.up_proj.weight' has shape [16, 24]"),
                                        HasSubstr("asks for [24, 16]")));

  tensors = random_tensors(model);
  tensors["model.norm.weight"] = at::zeros({16}, at::kByte);
  write(model, tensors);
  EXPECT_THAT(match_error(model), AllOf(HasSubstr("'model.norm.weight' has dtype U8")));

  tensors = random_tensors(model);
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({4});
  write(model, tensors);
  expect_read(model, tensors);

  tensors = random_tensors(model);
  tensors.erase("lm_head.weight");
  write(model, tensors);
  EXPECT_THAT(match_error(model), AllOf(HasSubstr("lacks the tensor 'lm_head.weight'"), HasSubstr("not tied")));
}

TEST_F(HuggingFaceFolder, TiedHeads) {
  const ModelConfig model = llama(true);
  const Tensors tensors = random_tensors(model);
  Tensors both = tensors;
  both["lm_head.weight"] = both.at("model.embed_tokens.weight");
  write(model, both);
  expect_read(model, tensors);
  HuggingFaceModel read(folder_.path());
  read.match(tensors_of(model));
  EXPECT_THAT(read.skipped(), ElementsAre("lm_head.weight"));

  Tensors only_head = both;
  only_head.erase("model.embed_tokens.weight");
  write(model, only_head);
  expect_read(model, tensors);

  Tensors differing = both;
  differing["lm_head.weight"] = both.at("lm_head.weight").neg();
  write(model, differing);
  EXPECT_THAT(match_error(model), AllOf(HasSubstr("'lm_head.weight' differs"), HasSubstr("tie_word_embeddings")));
}

TEST_F(HuggingFaceFolder, ReadsOtherFloatingTypes) {
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16, at::kHalf}) {
    const Tensors tensors = random_tensors(gpt2(), type);
    write(gpt2(), tensors);
    expect_read(gpt2(), tensors);
  }
  Tensors mixed = random_tensors(gpt2());
  mixed["transformer.ln_f.bias"] = mixed.at("transformer.ln_f.bias").to(at::kDouble);
  write(gpt2(), mixed);
  HuggingFaceModel read(folder_.path());
  read.match(tensors_of(gpt2()));
  EXPECT_EQ(read.common_type(), ElementType::f32);
}

TEST_F(HuggingFaceFolder, BrokenIndexes) {
  const ModelConfig model = llama(true);
  const Tensors tensors = random_tensors(model);
  write(model, tensors);
  std::filesystem::rename(folder_ / "model.safetensors", folder_ / "a.safetensors");
  EXPECT_THAT(match_error(model), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  json map = json::object();
  for (const auto& [name, values] : tensors) map[name] = "a.safetensors";
  const auto with_map = [&](const json& weight_map) {
    write_file(folder_ / "model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
    return match_error(model);
  };
  EXPECT_EQ(with_map(map), "");
  json changed = map;
  changed["model.norm.weight"] = "../a.safetensors";
  EXPECT_THAT(with_map(changed), AllOf(HasSubstr("'model.norm.weight'"), HasSubstr("outside the model's folder")));
  changed["model.norm.weight"] = "b.safetensors";
  EXPECT_THAT(with_map(changed), HasSubstr("names the shard b.safetensors, which is missing"));
  changed["model.norm.weight"] = 3;
  EXPECT_THAT(with_map(changed), HasSubstr("no file name"));
  changed = map;
  changed["model.other.weight"] = "a.safetensors";
  EXPECT_THAT(with_map(changed), AllOf(HasSubstr("'model.other.weight'"), HasSubstr("does not hold it")));
  std::filesystem::copy(folder_ / "a.safetensors", folder_ / "b.safetensors");
  changed = map;
  changed["model.norm.weight"] = "b.safetensors";
  EXPECT_THAT(with_map(changed), HasSubstr("is in two shards"));
  write_file(folder_ / "model.safetensors.index.json", "{}");
  EXPECT_THAT(match_error(model), HasSubstr("weight_map"));
}

TEST_F(HuggingFaceFolder, ForeignFormatsAreExplained) {
  write_file(folder_ / "params.json", "{}");
  EXPECT_THAT(match_error(llama(true)), AllOf(HasSubstr("no config.json"), HasSubstr("Meta's original format")));
  write_file(folder_ / "config.json", huggingface_config_text({.model = llama(true)}));
  write_file(folder_ / "pytorch_model.bin", "x");
  EXPECT_THAT(match_error(llama(true)), HasSubstr("pickle"));
}

TEST_F(HuggingFaceFolder, CarriesTheTokenizer) {
  const ModelConfig model = gpt2();
  const Tensors tensors = random_tensors(model);
  write_file(folder_ / "tok/tokenizer.json", R"({"added_tokens":[{"id":0,"content":"<|endoftext|>","special":true}]})");
  write_huggingface_model(folder_ / "out", {.config = {.model = model, .eos_token_ids = {0}},
                                            .tensors = tensors_of(model),
                                            .read = [&](const std::string& name) { return tensors.at(name); },
                                            .tokenizer_folder = folder_ / "tok"});
  EXPECT_THAT(names_in(folder_ / "out"),
              UnorderedElementsAre("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                   "tokenizer_config.json"));
  const json config = json::parse(read_file(folder_ / "out/tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(json::parse(read_file(folder_ / "out/generation_config.json"))["eos_token_id"], 0);
  EXPECT_EQ(json::parse(read_file(folder_ / "out/config.json"))["eos_token_id"], 0);
}

}  // namespace
}  // namespace paceline
