#pragma once

#include "paceline/cluster/profile.h"
#include "paceline/plan/training_step.h"

#include <string>
#include <vector>

namespace paceline {

/// The machine that all ranks of a run share.
struct Place {
  MachineProfile profile;
  int cores = 1;                 ///< that the run may use
  int threads_per_rank = 0;      ///< 0: cores / ranks, at least 1
  std::int64_t memory_bytes = 0; ///< of the machine; 0: unknown, nothing is refused for memory
  std::string backend = "shared_memory";  ///< how ranks talk: shared_memory (processes of one machine), gloo or threads
};

/// Time that one rank needs the processor for, and time that it then waits for messages of its group.
struct Duration {
  double compute_s = 0;
  double message_s = 0;
  double total() const { return compute_s + message_s; }
  Duration& operator+=(const Duration& other) {
    compute_s += other.compute_s;
    message_s += other.message_s;
    return *this;
  }
};

/// What each operation and action of a step costs on a place, when its rank has its threads to itself.
/// An operation takes the larger of FLOPs / measured rate at its shape and declared bytes / measured bandwidth (the
/// roofline of Williams, Waterman & Patterson, CACM 2009), plus the fixed overhead of a call; a message takes what was
/// measured for its size and group.
class CostModel {
 public:
  CostModel(const TrainingStep& step, const Place& place);

  int threads_per_rank() const { return occupancy_.threads; }

  /// Of one micro-batch; `kind` is forward, backward, backward_input or backward_weight.
  Duration operation(int stage, ActionKind kind, int operation) const;

  /// Of an action without what it waits for other ranks: receives and waits for buckets cost nothing here.
  Duration action(int stage, const Action& action) const;

  /// From the send of an activation or gradient between neighbouring stages to its arrival.
  double transfer_s() const;
  /// Of one bucket's reduction.
  double bucket_s(int stage, int bucket) const;
  /// The share of the last backward's time after which a bucket's gradients are complete.
  double bucket_ready_share(int stage, int bucket) const;

 private:
  Duration pass(int stage, ActionKind kind) const;
  double collective_s(int ranks, double bytes) const;

  const TrainingStep& step_;
  const Place& place_;
  Occupancy occupancy_;
  std::vector<std::vector<Duration>> forward_;  ///< [stage][operation]
  std::vector<std::vector<Duration>> backward_input_;
  std::vector<std::vector<Duration>> backward_weight_;
};

}  // namespace paceline
