#pragma once

#include "paceline/arch/model_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

using Shape = std::vector<std::int64_t>;

/// A rectangular part of a global tensor (under its Hugging Face name) and its place in a parameter's local storage.
/// A parameter is a list of blocks: fused projections (q | k | v, gate | up), tensor-parallel shards, padded
/// vocabularies and GPT-2's transposed matrices are all lists of blocks, never one offset.
struct Block {
  std::string tensor;              ///< Hugging Face name of the global tensor
  Shape global_shape;              ///< its whole shape, as Hugging Face stores it
  Shape begin;                     ///< first index of this block in the global tensor
  Shape extent;                    ///< size of this block, in the global tensor's orientation
  std::int64_t row = 0;            ///< first row of the parameter's local storage that this block fills
  std::int64_t column = 0;         ///< first column likewise (2-d only)
  bool transposed = false;         ///< local storage holds the block transposed (GPT-2's [in, out] matrices)
  std::int64_t units = 0;          ///< indivisible parts along its local rows: heads, or single rows
  bool trainable = true;

  /// The coordinates (pp * tp_degree + tp) in one model replica that hold this very block, ascending; the first owns
  /// it: it alone counts it in the gradient norm and writes it into checkpoints. Empty before parallelisation = one.
  std::vector<int> replicas;
  /// Whether each replica's gradient is a part that must be summed over `replicas` (tied tables on two stages, shared
  /// key/value heads) or already whole on each (norms beside tensor-parallel products).
  bool gradient_is_partial = false;
};

enum class Initialization { normal, zeros, ones };

/// One parameter of one rank: a local storage tensor made of blocks.
struct Parameter {
  std::string name;   ///< e.g. "layers.0.attention.qkv.weight"
  Shape shape;        ///< local storage, [rows, columns] or [rows]
  std::vector<Block> blocks;
  Initialization initialization = Initialization::normal;
  double standard_deviation = 0.02;  ///< of the normal initialisation
  bool decays = true;                ///< AdamW's decoupled decay applies: matrices and embeddings yes, norms and biases no

  std::int64_t elements() const;
  bool trainable() const;  ///< whether any of its blocks is
};

enum class ValueKind {
  tokens,      ///< int64 [micro_batch, sequence]
  activation,  ///< [micro_batch, sequence, width]
  loss,        ///< scalar
};

/// A named value between operations, for one micro-batch.
struct Value {
  std::string name;
  ValueKind kind = ValueKind::activation;
  std::int64_t width = 0;  ///< last dimension of an activation
};

/// How tensor parallelism may split an operation's parameters: declared by the model family.
enum class Split {
  none,
  column,      ///< output features: each rank computes a part of the output
  row,         ///< input features: each rank computes a summand of the output
  vocabulary,  ///< vocabulary entries, padded where they do not divide
};

enum class OperationKind {
  embedding,            ///< tokens -> x; parameters {table}
  position_embedding,   ///< x -> x + table[0..T); in place; parameters {table}
  rms_norm,             ///< x -> y; parameters {weight}
  layer_norm,           ///< x -> y; parameters {weight, bias}
  linear,               ///< x -> y; parameters {weight [out, in]} or {weight, bias}
  add_bias,             ///< x -> x + bias; in place; parameters {bias} (row-parallel products add theirs after the sum)
  rope,                 ///< qkv -> qkv; in place
  attention,            ///< qkv -> heads
  swiglu,               ///< [gate | up] -> silu(gate) * up
  gelu,                 ///< x -> gelu(x)
  add,                  ///< (a, b) -> a + b
  cross_entropy,        ///< (logits, targets) -> loss; the gradient takes the logits' storage
  tensor_parallel_copy, ///< x -> x; its backward sums over the tensor group (Megatron's f)
  all_reduce,           ///< x -> sum over the tensor group; its backward is the identity (Megatron's g)
};

/// One operation of a stage's list. Which fields matter depends on the kind; the others keep their defaults.
struct Operation {
  OperationKind kind{};
  std::string name;                ///< e.g. "layers.0.attention"
  std::vector<int> inputs;         ///< indices into Program::values
  std::vector<int> outputs;
  std::vector<int> parameters;     ///< indices into Program::parameters
  bool in_place = false;           ///< the output takes the storage of the first input
  Split split = Split::none;
  int layer = -1;                  ///< decoder layer, -1 outside

  std::int64_t heads = 0;          ///< rope, attention: query heads on this rank
  std::int64_t kv_heads = 0;       ///< rope, attention: key/value heads on this rank
  std::int64_t head_dim = 0;
  std::int64_t vocab_begin = 0;    ///< embedding, cross_entropy: first vocabulary entry on this rank
  std::int64_t vocab_size = 0;     ///< embedding, cross_entropy: the true (unpadded) global vocabulary
  double epsilon = 0.0;            ///< norms
  std::string activation;          ///< gelu: "gelu_new" or "gelu"
};

/// A model, or one rank's stage of it, as data: what the planner costs, the executor runs and the tracer labels.
struct Program {
  ModelConfig model;
  std::vector<Parameter> parameters;
  std::vector<Value> values;
  std::vector<Operation> operations;
  int tokens = -1;    ///< value: input ids; -1 where a stage receives activations instead
  int targets = -1;   ///< value: target ids; -1 but on the last stage
  int input = -1;     ///< value: activation received from the previous stage, or -1
  int output = -1;    ///< value: activation sent to the next stage, or -1
  int logits = -1;    ///< value: logits, or -1
  int loss = -1;      ///< value: loss, or -1
};

/// The whole model on one rank: embedding, `num_hidden_layers` decoder layers, final norm, head, loss.
Program build_program(const ModelConfig& model);

/// Checks that each value is written once before it is read, that indices and widths fit the operations' kinds and that
/// each parameter's blocks tile its storage (padding rows excepted). Throws a broken invariant. Run after each pass.
void verify(const Program& program);

/// Number of elements of the model's distinct global tensors (tied tables once).
std::int64_t parameter_count(const Program& program);

std::string operation_kind_name(OperationKind kind);

/// Rows and columns of a block in its parameter's local storage (columns = 1 for vectors).
std::int64_t local_rows(const Block& block);
std::int64_t local_columns(const Block& block);

}  // namespace paceline
