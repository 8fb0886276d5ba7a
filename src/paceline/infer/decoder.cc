#include "paceline/infer/decoder.h"

#include "paceline/base/error.h"
#include "paceline/ops/add.h"
#include "paceline/ops/attention.h"
#include "paceline/ops/embedding.h"
#include "paceline/ops/gelu.h"
#include "paceline/ops/layer_norm.h"
#include "paceline/ops/linear.h"
#include "paceline/ops/rms_norm.h"
#include "paceline/ops/swiglu.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace paceline {

Decoder::Decoder(const Program& program, const ModelState& state, std::int64_t capacity)
    : program_(program), state_(state), capacity_(capacity), caches_(program.operations.size()),
      last_use_(program.values.size(), -1) {
  PACELINE_CHECK(capacity >= 1 && capacity <= program.model.max_position_embeddings);
  const at::TensorOptions options = state.flat_weights.options();
  bool has_rope = false;
  for (std::size_t i = 0; i < program.operations.size(); ++i) {
    const Operation& operation = program.operations[i];
    for (const int input : operation.inputs) last_use_[input] = static_cast<int>(i);
    has_rope = has_rope || operation.kind == OperationKind::rope;
    if (operation.kind != OperationKind::attention) continue;
    const std::int64_t width = operation.kv_heads * operation.head_dim;
    caches_[i] = {at::empty({1, capacity, width}, options), at::empty({1, capacity, width}, options)};
  }
  if (has_rope) {
    const ModelConfig& model = program.model;
    rope_ = rope_tables(rope_frequencies(model.head_dim, model.rope_theta, model.rope_scaling), capacity,
                        state.flat_weights.scalar_type());
  }
}

void Decoder::truncate(std::int64_t length) {
  PACELINE_CHECK(length >= 0 && length <= length_);
  length_ = length;
}

at::Tensor Decoder::append(std::span<const std::int64_t> tokens) { return forward(tokens, false); }

at::Tensor Decoder::append_for_next(std::span<const std::int64_t> tokens) { return forward(tokens, true)[0]; }

at::Tensor Decoder::attention(const Operation& operation, Cache& cache, const at::Tensor& qkv) const {
  const std::int64_t new_rows = qkv.size(1);
  const std::int64_t query_width = operation.heads * operation.head_dim;
  const std::int64_t kv_width = operation.kv_heads * operation.head_dim;
  cache.keys.narrow(1, length_, new_rows).copy_(qkv.narrow(2, query_width, kv_width));
  cache.values.narrow(1, length_, new_rows).copy_(qkv.narrow(2, query_width + kv_width, kv_width));
  if (length_ == 0) return attention_forward(qkv, operation.heads, operation.kv_heads).y;
  return attention_cached_forward(qkv.narrow(2, 0, query_width), cache.keys, cache.values, length_ + new_rows, operation.heads,
                                  operation.kv_heads);
}

at::Tensor Decoder::forward(std::span<const std::int64_t> tokens, bool last_only) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  PACELINE_CHECK(count >= 1 && length_ + count <= capacity_);
  const at::Tensor ids = at::empty({1, count}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), ids.mutable_data_ptr<std::int64_t>());

  std::vector<at::Tensor> values(program_.values.size());
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    const Operation& operation = program_.operations[i];
    const auto input = [&](std::size_t n) -> at::Tensor& { return values[operation.inputs[n]]; };
    const auto weight = [&](std::size_t n) {
      return n < operation.parameters.size() ? state_.weight(operation.parameters[n]) : at::Tensor();
    };
    at::Tensor& result = values[operation.outputs[0]];
    switch (operation.kind) {
      case OperationKind::embedding:
        result = embedding_forward(ids, weight(0), operation.vocab_begin);
        break;
      case OperationKind::position_embedding:
        result = position_embedding_forward(input(0), weight(0), length_);
        break;
      case OperationKind::rms_norm:
        result = rms_norm_forward(input(0), weight(0), operation.epsilon).y;
        break;
      case OperationKind::layer_norm:
        result = layer_norm_forward(input(0), weight(0), weight(1), operation.epsilon).y;
        break;
      case OperationKind::linear: {
        const bool narrows = last_only && operation.outputs[0] == program_.logits;
        result = linear_forward(narrows ? input(0).narrow(1, count - 1, 1).contiguous() : input(0), weight(0), weight(1));
        break;
      }
      case OperationKind::add_bias:
        add_bias_forward(input(0), weight(0));
        result = input(0);
        break;
      case OperationKind::rope:
        rope_forward(input(0), *rope_, operation.heads, operation.kv_heads, length_);
        result = input(0);
        break;
      case OperationKind::attention:
        result = attention(operation, caches_[i], input(0));
        break;
      case OperationKind::swiglu:
        result = swiglu_forward(input(0));
        break;
      case OperationKind::gelu:
        result = gelu_forward(input(0), operation.activation == "gelu_new" ? GeluKind::tanh : GeluKind::erf);
        break;
      case OperationKind::add:
        result = add_forward(input(0), input(1));
        break;
      case OperationKind::cross_entropy:
        break;
      case OperationKind::tensor_parallel_copy:
      case OperationKind::all_reduce:
        throw_broken_invariant(__FILE__, __LINE__, "a program of one rank has no collectives");
    }
    for (const int used : operation.inputs) {
      if (last_use_[used] == static_cast<int>(i) && used != program_.logits) values[used].reset();
    }
  }
  length_ += count;
  return values[program_.logits][0].narrow(1, 0, program_.model.vocab_size);
}

}  // namespace paceline
