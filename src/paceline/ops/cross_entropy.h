#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace paceline {

/// Reduces over the ranks that hold the other columns of the same rows, in place; every rank gets the same bits.
class RowReducer {
 public:
  virtual ~RowReducer() = default;
  virtual void max(at::Tensor& rows) = 0;  ///< element-wise maximum
  virtual void sum(at::Tensor& rows) = 0;  ///< element-wise sum
};

/// What the rows of logits are held against.
struct CrossEntropyTargets {
  at::Tensor targets;        ///< int64, N elements: global token ids
  at::Tensor mask;           ///< uint8, N elements, 1 = counted; undefined = all. Masked rows may hold anything
  int64_t first_column = 0;  ///< the global column of the logits' first one
  int64_t vocabulary = 0;    ///< the true, global vocabulary: columns beyond it are padding, without probability
};

/// The sum over counted rows of log(sum(exp(logits))) - logits[target], added up in fp64 in a fixed order, and in place
/// of the logits [.., local columns] their gradient: scale x mask x (softmax - one_hot), zero in padded columns.
/// `reducer` is null where the columns are not split; else every rank gets the same sum. Throws for a counted target
/// outside the vocabulary (before anything is reduced or written).
double cross_entropy_forward_backward(const at::Tensor& logits, const CrossEntropyTargets& targets, double scale,
                                      RowReducer* reducer);

/// The sum only; the logits stay.
double cross_entropy_forward(const at::Tensor& logits, const CrossEntropyTargets& targets, RowReducer* reducer);

}  // namespace paceline
