#include "paceline/arch/program.h"

#include "paceline/base/error.h"

#include <cmath>
#include <map>
#include <set>

namespace paceline {
namespace {

/// Appends values, parameters and operations; a family is the sequence of its calls.
class Builder {
 public:
  explicit Builder(const ModelConfig& model) { program_.model = model; }

  int value(const std::string& name, ValueKind kind, std::int64_t width) {
    program_.values.push_back({name, kind, width});
    return static_cast<int>(program_.values.size()) - 1;
  }

  /// A matrix of fused parts along the rows: (tensor, rows, units), each [rows, columns] in its own tensor.
  struct Part {
    std::string tensor;
    std::int64_t rows;
    std::int64_t units;
  };
  int matrix(const std::string& name, const std::vector<Part>& parts, std::int64_t columns, double deviation) {
    Parameter parameter{.name = name, .standard_deviation = deviation};
    std::int64_t row = 0;
    for (const Part& part : parts) {
      parameter.blocks.push_back({.tensor = part.tensor, .global_shape = {part.rows, columns}, .begin = {0, 0},
                                  .extent = {part.rows, columns}, .row = row, .units = part.units});
      row += part.rows;
    }
    parameter.shape = {row, columns};
    return add(std::move(parameter));
  }

  /// GPT-2's Conv1D: one tensor [columns, rows] whose output features are cut into `parts` (rows, units).
  int transposed_matrix(const std::string& name, const std::string& tensor,
                        const std::vector<std::pair<std::int64_t, std::int64_t>>& parts, std::int64_t columns,
                        double deviation) {
    Parameter parameter{.name = name, .standard_deviation = deviation};
    std::int64_t rows = 0;
    for (const auto& part : parts) rows += part.first;
    std::int64_t row = 0;
    for (const auto& [part_rows, units] : parts) {
      parameter.blocks.push_back({.tensor = tensor, .global_shape = {columns, rows}, .begin = {0, row},
                                  .extent = {columns, part_rows}, .row = row, .transposed = true, .units = units});
      row += part_rows;
    }
    parameter.shape = {rows, columns};
    return add(std::move(parameter));
  }

  /// A vector of fused parts; when `tensor` is given all parts are ranges of that one tensor.
  int vector(const std::string& name, const std::vector<Part>& parts, Initialization initialization,
             bool one_tensor = false) {
    Parameter parameter{.name = name, .initialization = initialization, .decays = false};
    std::int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    std::int64_t row = 0;
    for (const Part& part : parts) {
      parameter.blocks.push_back({.tensor = part.tensor, .global_shape = {one_tensor ? rows : part.rows},
                                  .begin = {one_tensor ? row : 0}, .extent = {part.rows}, .row = row, .units = part.units});
      row += part.rows;
    }
    parameter.shape = {rows};
    return add(std::move(parameter));
  }

  Operation& operation(OperationKind kind, const std::string& name, std::vector<int> inputs, std::vector<int> outputs,
                       std::vector<int> parameters, int layer = -1) {
    program_.operations.push_back({.kind = kind, .name = name, .inputs = std::move(inputs),
                                   .outputs = std::move(outputs), .parameters = std::move(parameters), .layer = layer});
    return program_.operations.back();
  }

  Program& program() { return program_; }

 private:
  int add(Parameter parameter) {
    program_.parameters.push_back(std::move(parameter));
    return static_cast<int>(program_.parameters.size()) - 1;
  }

  Program program_;
};

std::vector<int> with_bias(int weight, int bias) {
  return bias < 0 ? std::vector<int>{weight} : std::vector<int>{weight, bias};
}

/// Residual outputs start smaller, by 1/sqrt(2 x layers), so that the residual stream's variance does not grow with
/// depth (Radford et al., GPT-2, 2019, section 2.3).
double residual_deviation(const ModelConfig& model) {
  return model.initializer_range / std::sqrt(2.0 * static_cast<double>(model.num_hidden_layers));
}

void finish_with_head(Builder& builder, int normed, int table) {
  Program& program = builder.program();
  const ModelConfig& model = program.model;
  int head = table;
  if (!model.tie_word_embeddings) {
    head = builder.matrix("head.weight", {{"lm_head.weight", model.vocab_size, model.vocab_size}}, model.hidden_size,
                          model.initializer_range);
  }
  program.logits = builder.value("logits", ValueKind::activation, model.vocab_size);
  builder.operation(OperationKind::linear, "head", {normed}, {program.logits}, {head}).split = Split::vocabulary;
  program.targets = builder.value("targets", ValueKind::tokens, 0);
  program.loss = builder.value("loss", ValueKind::loss, 0);
  auto& loss = builder.operation(OperationKind::cross_entropy, "cross_entropy", {program.logits, program.targets},
                                 {program.loss}, {});
  loss.split = Split::vocabulary;
  loss.vocab_size = model.vocab_size;
}

int begin_with_embedding(Builder& builder, const std::string& tensor, int* table) {
  Program& program = builder.program();
  const ModelConfig& model = program.model;
  program.tokens = builder.value("tokens", ValueKind::tokens, 0);
  *table = builder.matrix("embedding.weight", {{tensor, model.vocab_size, model.vocab_size}}, model.hidden_size,
                          model.initializer_range);
  const int x = builder.value("embedding", ValueKind::activation, model.hidden_size);
  auto& embedding = builder.operation(OperationKind::embedding, "embedding", {program.tokens}, {x}, {*table});
  embedding.split = Split::vocabulary;
  embedding.vocab_size = model.vocab_size;
  return x;
}

Program build_llama(const ModelConfig& model) {
  Builder builder(model);
  const std::int64_t width = model.hidden_size;
  const std::int64_t query = model.num_attention_heads * model.head_dim;
  const std::int64_t key = model.num_key_value_heads * model.head_dim;
  const std::int64_t ffn = model.intermediate_size;
  int table = -1;
  int x = begin_with_embedding(builder, "model.embed_tokens.weight", &table);

  for (int layer = 0; layer < model.num_hidden_layers; ++layer) {
    const std::string at = fmt::format("layers.{}.", layer);
    const std::string hf = fmt::format("model.layers.{}.", layer);
    const auto activation = [&](const char* name, std::int64_t size) {
      return builder.value(at + name, ValueKind::activation, size);
    };
    const auto norm = [&](const char* name, const char* tensor, int input) {
      const int weight = builder.vector(at + name + ".weight", {{hf + tensor + ".weight", width, width}}, Initialization::ones);
      const int output = activation(name, width);
      builder.operation(OperationKind::rms_norm, at + name, {input}, {output}, {weight}, layer).epsilon = model.norm_epsilon;
      return output;
    };

    int h = norm("attention_norm", "input_layernorm", x);
    const auto attention_part = [&](const char* name, const char* kind, std::int64_t rows, std::int64_t units) {
      return Builder::Part{hf + "self_attn." + name + "." + kind, rows, units};
    };
    const auto qkv_parts = [&](const char* kind) {
      return std::vector<Builder::Part>{attention_part("q_proj", kind, query, model.num_attention_heads),
                                        attention_part("k_proj", kind, key, model.num_key_value_heads),
                                        attention_part("v_proj", kind, key, model.num_key_value_heads)};
    };
    const int qkv_weight = builder.matrix(at + "attention.qkv.weight", qkv_parts("weight"), width, model.initializer_range);
    const int qkv_bias = model.attention_bias
                             ? builder.vector(at + "attention.qkv.bias", qkv_parts("bias"), Initialization::zeros) : -1;
    const int qkv = activation("attention.qkv", query + 2 * key);
    builder.operation(OperationKind::linear, at + "attention.qkv", {h}, {qkv}, with_bias(qkv_weight, qkv_bias), layer).split =
        Split::column;
    const int rotated = activation("attention.rope", query + 2 * key);
    auto& rope = builder.operation(OperationKind::rope, at + "attention.rope", {qkv}, {rotated}, {}, layer);
    rope.in_place = true;
    rope.heads = model.num_attention_heads;
    rope.kv_heads = model.num_key_value_heads;
    rope.head_dim = model.head_dim;
    const int heads = activation("attention", query);
    auto& attention = builder.operation(OperationKind::attention, at + "attention", {rotated}, {heads}, {}, layer);
    attention.heads = model.num_attention_heads;
    attention.kv_heads = model.num_key_value_heads;
    attention.head_dim = model.head_dim;
    const int output_weight = builder.matrix(at + "attention.output.weight", {attention_part("o_proj", "weight", width, width)},
                                             query, residual_deviation(model));
    const int output_bias = model.attention_bias
                                ? builder.vector(at + "attention.output.bias", {attention_part("o_proj", "bias", width, width)},
                                                 Initialization::zeros) : -1;
    const int attended = activation("attention.output", width);
    builder.operation(OperationKind::linear, at + "attention.output", {heads}, {attended},
                      with_bias(output_weight, output_bias), layer).split = Split::row;
    const int middle = activation("attention.residual", width);
    builder.operation(OperationKind::add, at + "attention.residual", {x, attended}, {middle}, {}, layer);

    h = norm("mlp_norm", "post_attention_layernorm", middle);
    const auto mlp_part = [&](const char* name, const char* kind, std::int64_t rows) {
      return Builder::Part{hf + "mlp." + name + "." + kind, rows, rows};
    };
    const int gate_up_weight =
        builder.matrix(at + "mlp.gate_up.weight", {mlp_part("gate_proj", "weight", ffn), mlp_part("up_proj", "weight", ffn)},
                       width, model.initializer_range);
    const int gate_up_bias =
        model.mlp_bias ? builder.vector(at + "mlp.gate_up.bias", {mlp_part("gate_proj", "bias", ffn), mlp_part("up_proj", "bias", ffn)},
                                        Initialization::zeros) : -1;
    const int gate_up = activation("mlp.gate_up", 2 * ffn);
    builder.operation(OperationKind::linear, at + "mlp.gate_up", {h}, {gate_up}, with_bias(gate_up_weight, gate_up_bias), layer)
        .split = Split::column;
    const int gated = activation("mlp.swiglu", ffn);
    builder.operation(OperationKind::swiglu, at + "mlp.swiglu", {gate_up}, {gated}, {}, layer);
    const int down_weight = builder.matrix(at + "mlp.down.weight", {mlp_part("down_proj", "weight", width)}, ffn,
                                           residual_deviation(model));
    const int down_bias = model.mlp_bias
                              ? builder.vector(at + "mlp.down.bias", {mlp_part("down_proj", "bias", width)}, Initialization::zeros) : -1;
    const int down = activation("mlp.down", width);
    builder.operation(OperationKind::linear, at + "mlp.down", {gated}, {down}, with_bias(down_weight, down_bias), layer).split =
        Split::row;
    const int next = activation("mlp.residual", width);
    builder.operation(OperationKind::add, at + "mlp.residual", {middle, down}, {next}, {}, layer);
    x = next;
  }

  const int weight = builder.vector("final_norm.weight", {{"model.norm.weight", width, width}}, Initialization::ones);
  const int normed = builder.value("final_norm", ValueKind::activation, width);
  builder.operation(OperationKind::rms_norm, "final_norm", {x}, {normed}, {weight}).epsilon = model.norm_epsilon;
  finish_with_head(builder, normed, table);
  return std::move(builder.program());
}

Program build_gpt2(const ModelConfig& model) {
  Builder builder(model);
  const std::int64_t width = model.hidden_size;
  const std::int64_t ffn = model.intermediate_size;
  int table = -1;
  const int embedded = begin_with_embedding(builder, "transformer.wte.weight", &table);
  const int positions = builder.matrix("position_embedding.weight",
                                       {{"transformer.wpe.weight", model.max_position_embeddings, model.max_position_embeddings}},
                                       width, model.initializer_range);
  int x = builder.value("position_embedding", ValueKind::activation, width);
  builder.operation(OperationKind::position_embedding, "position_embedding", {embedded}, {x}, {positions}).in_place = true;

  for (int layer = 0; layer < model.num_hidden_layers; ++layer) {
    const std::string at = fmt::format("layers.{}.", layer);
    const std::string hf = fmt::format("transformer.h.{}.", layer);
    const auto activation = [&](const char* name, std::int64_t size) {
      return builder.value(at + name, ValueKind::activation, size);
    };
    const auto norm = [&](const char* name, const char* tensor, int input) {
      const int weight = builder.vector(at + name + ".weight", {{hf + tensor + ".weight", width, width}}, Initialization::ones);
      const int bias = builder.vector(at + name + ".bias", {{hf + tensor + ".bias", width, width}}, Initialization::zeros);
      const int output = activation(name, width);
      builder.operation(OperationKind::layer_norm, at + name, {input}, {output}, {weight, bias}, layer).epsilon =
          model.norm_epsilon;
      return output;
    };
    const auto product = [&](const std::string& name, const std::string& tensor,
                             const std::vector<std::pair<std::int64_t, std::int64_t>>& parts, std::int64_t columns,
                             double deviation, int input, Split split) {
      std::int64_t rows = 0;
      std::vector<Builder::Part> bias_parts;
      for (const auto& [part_rows, units] : parts) {
        bias_parts.push_back({hf + tensor + ".bias", part_rows, units});
        rows += part_rows;
      }
      const int weight = builder.transposed_matrix(at + name + ".weight", hf + tensor + ".weight", parts, columns, deviation);
      const int bias = builder.vector(at + name + ".bias", bias_parts, Initialization::zeros, /*one_tensor=*/true);
      const int output = builder.value(at + name, ValueKind::activation, rows);
      builder.operation(OperationKind::linear, at + name, {input}, {output}, {weight, bias}, layer).split = split;
      return output;
    };

    int h = norm("attention_norm", "ln_1", x);
    const std::int64_t heads = model.num_attention_heads;
    const int qkv = product("attention.qkv", "attn.c_attn", {{width, heads}, {width, heads}, {width, heads}}, width,
                            model.initializer_range, h, Split::column);
    const int attended = activation("attention", width);
    auto& attention = builder.operation(OperationKind::attention, at + "attention", {qkv}, {attended}, {}, layer);
    attention.heads = attention.kv_heads = heads;
    attention.head_dim = model.head_dim;
    const int output = product("attention.output", "attn.c_proj", {{width, width}}, width, residual_deviation(model), attended,
                               Split::row);
    const int middle = activation("attention.residual", width);
    builder.operation(OperationKind::add, at + "attention.residual", {x, output}, {middle}, {}, layer);

    h = norm("mlp_norm", "ln_2", middle);
    const int up = product("mlp.up", "mlp.c_fc", {{ffn, ffn}}, width, model.initializer_range, h, Split::column);
    const int activated = activation("mlp.gelu", ffn);
    builder.operation(OperationKind::gelu, at + "mlp.gelu", {up}, {activated}, {}, layer).activation = model.activation;
    const int down = product("mlp.down", "mlp.c_proj", {{width, width}}, ffn, residual_deviation(model), activated, Split::row);
    const int next = activation("mlp.residual", width);
    builder.operation(OperationKind::add, at + "mlp.residual", {middle, down}, {next}, {}, layer);
    x = next;
  }

  const int weight = builder.vector("final_norm.weight", {{"transformer.ln_f.weight", width, width}}, Initialization::ones);
  const int bias = builder.vector("final_norm.bias", {{"transformer.ln_f.bias", width, width}}, Initialization::zeros);
  const int normed = builder.value("final_norm", ValueKind::activation, width);
  builder.operation(OperationKind::layer_norm, "final_norm", {x}, {normed}, {weight, bias}).epsilon = model.norm_epsilon;
  finish_with_head(builder, normed, table);
  return std::move(builder.program());
}

}  // namespace

std::int64_t Parameter::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

bool Parameter::trainable() const {
  for (const Block& block : blocks) {
    if (block.trainable) return true;
  }
  return false;
}

std::int64_t local_rows(const Block& block) {
  return block.extent.size() == 2 && block.transposed ? block.extent[1] : block.extent[0];
}

std::int64_t local_columns(const Block& block) {
  return block.extent.size() == 1 ? 1 : block.transposed ? block.extent[0] : block.extent[1];
}

Program build_program(const ModelConfig& model) {
  validate(model);
  Program program = model.family == ModelFamily::llama ? build_llama(model) : build_gpt2(model);
  verify(program);
  return program;
}

void verify(const Program& program) {
  const int value_count = static_cast<int>(program.values.size());
  std::vector<bool> written(program.values.size(), false);
  for (const int given : {program.tokens, program.targets, program.input}) {
    PACELINE_CHECK(given < value_count);
    if (given >= 0) written[given] = true;
  }
  const auto width = [&](int value) { return program.values[value].width; };
  for (const Operation& operation : program.operations) {
    for (const int input : operation.inputs) PACELINE_CHECK(input >= 0 && input < value_count && written[input]);
    for (const int output : operation.outputs) {
      PACELINE_CHECK(output >= 0 && output < value_count && !written[output]);
      written[output] = true;
    }
    for (const int parameter : operation.parameters) {
      PACELINE_CHECK(parameter >= 0 && parameter < static_cast<int>(program.parameters.size()));
    }
    const auto shape = [&](std::size_t i) { return program.parameters[operation.parameters[i]].shape; };
    switch (operation.kind) {
      case OperationKind::linear:
        PACELINE_CHECK((shape(0) == Shape{width(operation.outputs[0]), width(operation.inputs[0])}));
        PACELINE_CHECK(operation.parameters.size() == 1 || shape(1) == Shape{width(operation.outputs[0])});
        break;
      case OperationKind::rms_norm:
      case OperationKind::add_bias:
        PACELINE_CHECK(shape(0) == Shape{width(operation.inputs[0])});
        break;
      case OperationKind::layer_norm:
        PACELINE_CHECK(shape(0) == Shape{width(operation.inputs[0])} && shape(1) == shape(0));
        break;
      case OperationKind::embedding:
      case OperationKind::position_embedding:
        PACELINE_CHECK(shape(0)[1] == width(operation.outputs[0]));
        break;
      case OperationKind::rope:
      case OperationKind::attention:
        PACELINE_CHECK(width(operation.inputs[0]) == (operation.heads + 2 * operation.kv_heads) * operation.head_dim);
        break;
      case OperationKind::swiglu:
        PACELINE_CHECK(width(operation.inputs[0]) == 2 * width(operation.outputs[0]));
        break;
      case OperationKind::add:
        PACELINE_CHECK(width(operation.inputs[0]) == width(operation.inputs[1]));
        break;
      case OperationKind::gelu:
      case OperationKind::cross_entropy:
      case OperationKind::tensor_parallel_copy:
      case OperationKind::all_reduce:
        break;
    }
  }
  for (const int needed : {program.output, program.loss}) PACELINE_CHECK(needed < 0 || written[needed]);
  for (const Parameter& parameter : program.parameters) {
    std::int64_t row = 0;
    for (const Block& block : parameter.blocks) {
      PACELINE_CHECK(block.row == row && block.column == 0);
      PACELINE_CHECK(local_columns(block) == (parameter.shape.size() == 2 ? parameter.shape[1] : 1));
      for (std::size_t d = 0; d < block.extent.size(); ++d) {
        PACELINE_CHECK(block.begin[d] >= 0 && block.begin[d] + block.extent[d] <= block.global_shape[d]);
      }
      row += local_rows(block);
    }
    PACELINE_CHECK(row <= parameter.shape[0]);
  }
}

std::int64_t parameter_count(const Program& program) {
  std::map<std::string, std::int64_t> tensors;
  for (const Parameter& parameter : program.parameters) {
    for (const Block& block : parameter.blocks) {
      std::int64_t elements = 1;
      for (const std::int64_t size : block.global_shape) elements *= size;
      tensors[block.tensor] = elements;
    }
  }
  std::int64_t count = 0;
  for (const auto& [tensor, elements] : tensors) count += elements;
  return count;
}

std::string operation_kind_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::embedding: return "embedding";
    case OperationKind::position_embedding: return "position_embedding";
    case OperationKind::rms_norm: return "rms_norm";
    case OperationKind::layer_norm: return "layer_norm";
    case OperationKind::linear: return "linear";
    case OperationKind::add_bias: return "add_bias";
    case OperationKind::rope: return "rope";
    case OperationKind::attention: return "attention";
    case OperationKind::swiglu: return "swiglu";
    case OperationKind::gelu: return "gelu";
    case OperationKind::add: return "add";
    case OperationKind::cross_entropy: return "cross_entropy";
    case OperationKind::tensor_parallel_copy: return "tensor_parallel_copy";
    case OperationKind::all_reduce: return "all_reduce";
  }
  throw_broken_invariant(__FILE__, __LINE__, "operation kind");
}

}  // namespace paceline
