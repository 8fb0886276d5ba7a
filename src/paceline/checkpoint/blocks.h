#pragma once

#include "paceline/arch/program.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace paceline {

/// The part of a parameter's local storage that one block fills, seen in the global tensor's orientation: a strided
/// view of shape `block.extent` (no copy). Writing to it writes the storage.
at::Tensor block_view(const Block& block, const at::Tensor& local);

/// The part of a whole global tensor that a block covers: a view of shape `block.extent`.
at::Tensor global_view(const Block& block, const at::Tensor& global);

/// Copies a block's part of `global` (shape `block.global_shape`) into the local storage.
void scatter(const Block& block, const at::Tensor& global, const at::Tensor& local);

/// A block's values in the global orientation, contiguous, shape `block.extent`. Shares the storage where it can.
at::Tensor gather(const Block& block, const at::Tensor& local);

/// Number of elements of a block.
std::int64_t block_elements(const Block& block);

/// Whether the blocks leave rows of the storage unused (a padded vocabulary); such rows stay zero.
bool has_padding(const Parameter& parameter);

/// Whether the rank at `model_coordinate` (pp * tp_degree + tp) of the first data-parallel replica is the one that
/// writes this block into checkpoints.
bool owns_block(const Block& block, int model_coordinate);

/// Sets a parameter's local storage to its initial values. An element's value is a function of the seed, the global
/// tensor's name and the element's index in it, so every layout starts from the same model. Padding rows are zero.
/// fp64, fp32, bf16 and fp16.
void initialize(const Parameter& parameter, std::uint64_t seed, const at::Tensor& local);

}  // namespace paceline
