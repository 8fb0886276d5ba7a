#pragma once

#include "paceline/arch/program.h"
#include "paceline/comm/communicator.h"
#include "paceline/ops/memory_account.h"
#include "paceline/ops/rope.h"
#include "paceline/train/model_state.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace paceline {

/// The inputs of one micro-batch on this rank.
struct MicroBatchData {
  at::Tensor tokens;   ///< int64 [micro_batch, sequence]
  at::Tensor targets;  ///< int64 [micro_batch, sequence]
  at::Tensor mask;     ///< uint8 [micro_batch, sequence]: 1 where the target counts
};

/// Called after each operation of a pass, with its index: how trace spans and buckets follow the pass.
struct PassObserver {
  std::function<void(int operation)> before;
  std::function<void(int operation)> after;
};

/// Runs one stage's operation list, forward and backward, on tensors. It keeps from forward to backward exactly what
/// the operations declare to save (arch/operation_cost.h) and frees every other value after its last use.
class StageRunner {
 public:
  /// `program`, `state` and `account` outlive the runner; `tensor_group` is null without tensor parallelism.
  StageRunner(const Program& program, ModelState& state, Communicator* tensor_group, std::int64_t sequence_length,
              MemoryAccount& account);
  ~StageRunner();

  /// One micro-batch between its forward and its backward.
  class Pass;
  struct PassDeleter {
    void operator()(Pass* pass) const;
  };
  using PassHandle = std::unique_ptr<Pass, PassDeleter>;

  /// Forward for training. `input` [micro_batch, sequence, width] is the previous stage's output (undefined on the first
  /// stage). `loss_scale` multiplies the summed loss's gradient: 1 / the global number of valid targets.
  PassHandle forward(const MicroBatchData& data, const at::Tensor& input, double loss_scale, const PassObserver& observer);

  /// What a forward gave: the stage's output (undefined on the last), which is then the caller's, and the summed loss.
  static at::Tensor take_output(Pass& pass);
  static double loss_sum(const Pass& pass);

  /// Both halves of the backward. `output_gradient` is the next stage's (undefined on the last); where the caller gives its
  /// memory away, the residual stream's gradient grows in it. Returns the gradient of
  /// the stage's input (undefined on the first). Weight gradients are added up over the passes since begin_step().
  at::Tensor backward(PassHandle pass, at::Tensor output_gradient, const PassObserver& observer);

  /// The halves by themselves: after the first, the pass still holds what the second needs.
  at::Tensor backward_input(Pass& pass, at::Tensor output_gradient, const PassObserver& observer);
  void backward_weight(PassHandle pass, const PassObserver& observer);

  /// Forward only, nothing saved. The summed loss where the stage has targets; logits where they are asked for.
  struct Evaluation {
    at::Tensor output;
    double loss_sum = 0;
    at::Tensor logits;  ///< [micro_batch, sequence, local vocabulary]
  };
  Evaluation evaluate(const MicroBatchData& data, const at::Tensor& input, bool keep_logits, const PassObserver& observer);

  /// The next weight gradients replace the old ones.
  void begin_step();
  /// Zeroes the gradients that no pass has written since begin_step().
  void finish_gradients();

 private:
  enum class Mode { train, evaluate };
  void run_forward(Pass& pass, Mode mode, double loss_scale, bool keep_logits, const PassObserver& observer);
  void forward_operation(Pass& pass, int index, Mode mode, double loss_scale);
  at::Tensor run_backward(Pass& pass, at::Tensor output_gradient, bool with_weights, const PassObserver& observer);
  void backward_operation(Pass& pass, int index, bool with_weights);
  void weight_gradient(const Operation& operation, const at::Tensor& dy, const at::Tensor& x);
  /// The gradient buffer of an operation's i-th parameter and whether to add to it; a scratch buffer if it is frozen.
  at::Tensor gradient_target(const Operation& operation, std::size_t i, bool* accumulate, bool adds_only);

  const Program& program_;
  ModelState& state_;
  Communicator* tensor_group_;
  MemoryAccount& account_;
  std::optional<RopeTables> rope_;
  std::vector<int> last_forward_use_;   ///< of each value; -1: none
  std::vector<int> first_saved_use_;    ///< the smallest operation whose backward reads the value; -1: not saved
  std::vector<bool> gradient_written_;  ///< by parameter, since begin_step()
};

}  // namespace paceline
