#pragma once

#include "paceline/plan/training_step.h"

#include <string>

namespace paceline {

/// The most tensor memory that a rank of one stage holds during a step, in bytes by class. The process itself (libtorch,
/// buffers of the transport, the mapped data) comes on top and is not counted.
struct StageMemory {
  double parameters = 0;     ///< weights, with the alignment and padding of their storage
  double gradients = 0;      ///< one flat buffer of the weights' type
  double optimizer = 0;      ///< AdamW's two moments
  double activations = 0;    ///< values kept for backward, those being worked on, gradients of values, messages
  double communication = 0;  ///< scratch of collectives: they work in place
  double workspace = 0;      ///< rotary tables, and what making them takes before the first step
  double logits = 0;         ///< part of `activations`: logits of the micro-batch being worked on
  int peak_action = -1;      ///< index in the stage's list of the action in which `activations` is largest
  std::string peak_operation;  ///< the operation in it; empty between operations
  int peak_in_flight = 0;    ///< micro-batches between forward and backward then, with the one being worked on

  /// The sum of the classes' peaks: at most a little more than the rank ever holds at once.
  double total() const { return parameters + gradients + optimizer + activations + communication + workspace; }
};

/// Plays the stage's list and, in each pass, its operations, with what each keeps, makes and frees: the executor's
/// rules. A gradient passes unchanged through sums and copies, into the residual stream's in norms, and takes the
/// storage of the input of SwiGLU and GELU and of the logits.
StageMemory stage_memory(const TrainingStep& step, int stage);

}  // namespace paceline
