#pragma once

#include "paceline/arch/program.h"
#include "paceline/parallel/layout.h"

#include <string>
#include <utility>
#include <vector>

namespace paceline {

/// Everything that decides how a model is laid over ranks.
struct ParallelOptions {
  Layout layout;
  /// Decoder layers of each stage; empty = as even as can be, earlier stages taking the remainder.
  std::vector<std::int64_t> layers_per_stage;
  /// Regular expressions (RE2, whole name) over Hugging Face names: parameters that are not trained.
  std::vector<std::string> frozen;
};

/// Megatron's tensor parallelism (Shoeybi et al., 2019, section 3) as a rewrite: column-parallel qkv, gate-up and head,
/// row-parallel attention output and down product, vocabulary-parallel embedding and cross-entropy (vocabularies that
/// do not divide are padded), replicated key/value heads where there are fewer than ranks.
/// Refuses, with the numbers and what would work, heads that do not divide.
Program tensor_parallel(const Program& whole, int degree, int rank);

/// One pipeline stage of a program: its layers, the embedding on the first, final norm, head and loss on the last; a
/// tied table is held by both and its gradient summed over the two.
Program pipeline_stage(const Program& program, const std::vector<std::int64_t>& layers_per_stage, int stage, int tp_degree,
                       int tp_rank);

/// The split that `options` means for `layers` layers; refuses splits that lose layers or leave a stage without one.
std::vector<std::int64_t> stage_layers(const ParallelOptions& options, std::int64_t layers);

/// All passes in order, each verified: the program that the ranks at (tp, pp) of `coordinate` run.
Program build_rank_program(const ModelConfig& model, const ParallelOptions& options, Coordinate coordinate);

/// The flat gradient storage of a stage: parameters in the order in which the backward pass finishes their gradients,
/// cut into buckets of at least `bucket_bytes` (the last may be smaller). A parameter whose gradient is partial over
/// replicas is in the last bucket, after `reduce_replicas`.
struct GradientBuckets {
  std::vector<int> order;                             ///< parameter indices in storage order (trainable only)
  std::vector<std::int64_t> offsets;                  ///< first element of each, 16-element aligned, same order
  std::int64_t elements = 0;                          ///< of the whole flat buffer
  std::vector<std::pair<std::int64_t, std::int64_t>> buckets;  ///< [begin, end) in elements
  /// Index into Program::operations of the operation whose backward completes each bucket; -1: complete only after
  /// the replica groups are reduced.
  std::vector<int> completed_by;
};

GradientBuckets gradient_buckets(const Program& program, std::int64_t bucket_bytes, std::int64_t element_bytes);

/// Whether any block of the program has a partial gradient over more than one replica.
bool has_partial_gradients(const Program& program);

}  // namespace paceline
