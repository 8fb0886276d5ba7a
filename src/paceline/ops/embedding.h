#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace paceline {

/// Rows of a table by token: tokens int64 [B, T], table [rows, width] -> [B, T, width]. The table holds the
/// vocabulary's rows [first_row, first_row + rows); tokens outside give zeros (vocabulary-parallel: the ranks' outputs
/// add up to the whole). Throws for a negative token.
at::Tensor embedding_forward(const at::Tensor& tokens, const at::Tensor& table, int64_t first_row);

/// Adds each position's dy [B, T, width] to its token's row of grad_table, in the order of positions.
void embedding_backward(const at::Tensor& dy, const at::Tensor& tokens, int64_t first_row,
                        const at::Tensor& grad_table);

/// y = x + table[first_position .. first_position + T): x [B, T, width], table [positions, width].
at::Tensor position_embedding_forward(const at::Tensor& x, const at::Tensor& table, int64_t first_position = 0);

/// Adds dy [B, T, width], summed over the batch, to rows [0, T) of grad_table.
void position_embedding_backward(const at::Tensor& dy, const at::Tensor& grad_table);

}  // namespace paceline
