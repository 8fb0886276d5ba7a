#pragma once

#include "paceline/comm/communicator_set.h"
#include "paceline/optim/adamw.h"
#include "paceline/schedule/schedule.h"
#include "paceline/trace/recorder.h"
#include "paceline/train/model_state.h"
#include "paceline/train/sample_source.h"
#include "paceline/train/stage_runner.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

/// How the samples of a step fall on ranks: global_batch = micro_batch_size x micro_batches x dp.
struct BatchShape {
  std::int64_t micro_batch_size = 1;  ///< sequences a rank and pass
  std::int64_t micro_batches = 1;     ///< passes a rank and step
  std::int64_t sequence_length = 1;
};

/// What a step is asked to do.
struct StepRequest {
  std::int64_t step = 1;              ///< 1 is the first
  std::uint64_t first_sample = 0;     ///< the step uses samples [first_sample, first_sample + global batch)
  AdamWSettings optimizer;            ///< with this step's learning rate
  double max_gradient_norm = 0;       ///< 0: no clipping
  std::int64_t optimizer_count = 1;   ///< updates including this one (AdamW's bias correction)
  bool wants_stop = false;            ///< this rank was asked to stop; any rank's wish stops all
};

/// What all ranks agree on after a step.
struct StepResult {
  double loss = 0;                    ///< mean over the step's valid targets; NaN when there are none
  double gradient_norm = 0;           ///< before clipping
  std::int64_t valid_targets = 0;
  bool updated = false;               ///< false: no valid target, or a gradient that is not finite
  bool stop = false;
  double communication_wait_s = 0;    ///< this rank's time in receives and reductions
};

/// Plays one rank's list of a schedule on tensors and communicators, and stamps each span with (step, action, operation).
class Executor {
 public:
  /// All references outlive the executor. Making it is collective: it makes the groups of replicated parameters.
  Executor(const Program& program, const ParallelOptions& options, ModelState& state, CommunicatorSet& communicators,
           const BatchShape& batch, PipelineSchedule schedule, Recorder& recorder, MemoryAccount& account);
  ~Executor();

  StepResult step(const StepRequest& request, const SampleSource& source);

  struct EvaluationResult {
    double loss_sum = 0;              ///< over all ranks' targets
    std::int64_t valid_targets = 0;
    double loss() const { return loss_sum / static_cast<double>(valid_targets); }
  };
  /// Held-out loss of samples [0, samples): the same samples in every layout.
  EvaluationResult evaluate(const SampleSource& source, std::int64_t samples, std::int64_t step);

  /// The first tensor of this rank whose gradient is not finite (Hugging Face name), or empty.
  std::string bad_gradient() const;

  const Schedule& schedule() const { return schedule_; }
  const std::vector<Action>& actions() const { return schedule_.ranks[stage_]; }

  /// Told before each action: what supervision shows of a rank. `waits` marks actions that depend on other ranks.
  void set_progress(std::function<void(const Action&, bool waits)> progress) { progress_ = std::move(progress); }

  /// The names of an executor's spans, and of the scalars that the run records beside them.
  static NameTable span_names();

 private:
  struct StepState;
  void load(StepState& state, const SampleSource& source);
  MicroBatchData read_micro_batch(const SampleSource& source, const std::vector<std::int64_t>& samples) const;
  void run_action(StepState& state, int index, const SampleSource& source);
  PassObserver observer(int action, std::function<void(int)> after);
  void start_bucket(StepState& state, int bucket);
  void make_replica_groups();
  void gradient_norm(StepState& state);
  void optimizer_step(StepState& state);
  at::Tensor boundary_tensor() const;

  const Program& program_;
  Layout layout_;
  Coordinate coordinate_;
  int stage_;
  ModelState& state_;
  CommunicatorSet& communicators_;
  BatchShape batch_;
  Schedule schedule_;
  Recorder& recorder_;
  MemoryAccount& account_;
  StageRunner runner_;
  std::vector<NameId> action_names_;     ///< by ActionKind
  std::vector<NameId> operation_names_;  ///< by OperationKind
  struct ReplicaGroup {
    std::unique_ptr<Communicator> group;
    std::vector<at::Tensor> gradients;
  };
  std::vector<ReplicaGroup> replica_groups_;
  std::function<void(const Action&, bool)> progress_;
  std::uint64_t operation_start_ = 0;
};

}  // namespace paceline
