#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

/// Where an action runs: in the rank's own thread, which plays its list in order and blocks in receives and
/// collectives, or beside it: an action on the communication lane is asynchronous (sends, bucket reductions).
enum class Lane { compute, communication };

enum class ActionKind {
  load,                 ///< read this step's samples of this data-parallel replica
  count_tokens,         ///< sum of the valid targets over the data-parallel group
  receive_activation,   ///< wait for micro-batch m's input from the previous stage
  send_activation,      ///< hand micro-batch m's output to the next stage (asynchronous)
  forward,              ///< forward of micro-batch m on chunk c
  receive_gradient,     ///< wait for the gradient of micro-batch m's output from the next stage
  send_gradient,        ///< hand the gradient of micro-batch m's input to the previous stage (asynchronous)
  backward,             ///< backward of micro-batch m on chunk c, inputs and weights
  backward_input,       ///< the input half of it
  backward_weight,      ///< the weight half of it
  reduce_replicas,      ///< sum partial gradients over replica groups (tied tables, shared key/value heads)
  reduce_bucket,        ///< sum bucket b over the data-parallel group (asynchronous; waited by wait_buckets)
  wait_buckets,         ///< wait until every bucket is reduced
  gradient_norm,        ///< global gradient norm and loss, one reduction over all ranks
  optimizer_step,       ///< clip and update
  evaluate,             ///< held-out loss (whole passes, outside the training step)
  checkpoint,           ///< save
};

/// One typed action of one rank's step. It is identified by its index in the rank's list: the planner's prediction, the
/// executor's work and the tracer's span carry the same (step, index).
struct Action {
  ActionKind kind{};
  int micro_batch = -1;
  int chunk = -1;        ///< model chunk (virtual stage) on this rank
  int peer = -1;         ///< pipeline rank at the other end of a send or receive
  int bucket = -1;
  Lane lane = Lane::compute;
  bool operator==(const Action&) const = default;
};

enum class PipelineSchedule { gpipe, one_forward_one_backward };

/// One step of each pipeline rank, as data. All ranks of one pipeline stage (tensor, data) run the same list.
struct Schedule {
  PipelineSchedule kind = PipelineSchedule::one_forward_one_backward;
  int stages = 1;
  int micro_batches = 1;
  bool training = true;                     ///< false: forwards only, for evaluation
  std::vector<int> buckets;                 ///< gradient buckets of each stage; empty without data parallelism
  std::vector<bool> replicas_to_reduce;     ///< stage has partial gradients to sum over replica groups; empty = none
  std::vector<std::vector<Action>> ranks;   ///< [stage][action]
};

/// What the step looks like besides the pipeline.
struct ScheduleOptions {
  PipelineSchedule kind = PipelineSchedule::one_forward_one_backward;
  int stages = 1;
  int micro_batches = 1;
  std::vector<int> buckets;               ///< buckets of each stage; empty without data parallelism
  std::vector<bool> replicas_to_reduce;   ///< stage has partial gradients to sum over replica groups; empty = none
};

/// A training step: load, count tokens, the pipeline's forwards and backwards, reductions, norm, optimiser.
/// GPipe runs all forwards, then all backwards; 1F1B (PipeDream-Flush, Narayanan et al., SC'21, section 2.2) at most
/// `stages - stage` micro-batches in flight. A bucket's reduction is listed right after the backward of the last
/// micro-batch; the executor may start it as soon as that backward has produced the bucket's last gradient. The backwards
/// run in ascending micro-batch order in both kinds, so both add up a gradient in the same order, to the same bits.
/// Refuses numbers of stages or micro-batches below one; fewer micro-batches than stages are fine.
Schedule build_training_schedule(const ScheduleOptions& options);

/// load, then forward passes only, for evaluation.
Schedule build_evaluation_schedule(int stages, int micro_batches);

/// What check() found.
struct ScheduleCheck {
  bool valid = false;
  std::string error;                    ///< first fault in words: rank, action, what it waits for
  double bubble = 0.0;                  ///< idle share of the busiest stage, forward = 1, backward = 2, transfers free
  std::vector<int> peak_in_flight;      ///< [stage] most micro-batches whose activations are held at once
};

/// Plays the schedule with unit costs: each receive has its send, in order; each micro-batch goes forward once through
/// each stage before its backward; no rank waits for ever; each bucket is reduced once, after the last backward.
/// Sends are asynchronous (buffered), receives block; reduce_replicas and gradient_norm wait for every stage that has one.
ScheduleCheck check(const Schedule& schedule);

std::string action_kind_name(ActionKind kind);
/// "forward m2", "receive_activation m0 from stage 1", ...
std::string action_label(const Action& action);
PipelineSchedule parse_pipeline_schedule(const std::string& name);
std::string pipeline_schedule_name(PipelineSchedule kind);

}  // namespace paceline
