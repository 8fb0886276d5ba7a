#include "paceline/base/error.h"
#include "paceline/schedule/schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

namespace paceline {
namespace {

constexpr double forward_cost = 1.0;
constexpr double backward_cost = 2.0;

/// What has happened to one micro-batch on one stage.
struct MicroBatchState {
  bool received_activation = false;
  bool forward = false;
  bool sent_activation = false;
  bool received_gradient = false;
  bool backward_input = false;
  bool backward_weight = false;
  bool sent_gradient = false;
};

struct Message {
  ActionKind sent_by{};
  int micro_batch = 0;
  double time = 0.0;
};

/// One stage while the schedule is played.
struct StageState {
  std::size_t next = 0;  ///< index of the action that is due
  double time = 0.0;
  double busy = 0.0;
  int in_flight = 0;
  int peak_in_flight = 0;
  std::vector<MicroBatchState> micro_batches;
  std::vector<int> reduced;  ///< times each bucket was reduced
  int reduced_buckets = 0;
  std::map<ActionKind, int> done;
};

class Player {
 public:
  explicit Player(const Schedule& schedule) : schedule_(schedule) {}

  ScheduleCheck play() {
    if (schedule_.stages < 1 || static_cast<int>(schedule_.ranks.size()) != schedule_.stages) {
      return fault(fmt::format("{} lists of actions for {} pipeline stages", schedule_.ranks.size(), schedule_.stages));
    }
    if (schedule_.micro_batches < 1) return fault("a step of 0 micro-batches: needs at least 1");
    for (const std::size_t size : {schedule_.buckets.size(), schedule_.replicas_to_reduce.size()}) {
      if (size != 0 && size != schedule_.ranks.size()) return fault("buckets and replicas must be given for each stage");
    }
    stages_.resize(schedule_.ranks.size());
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      stages_[stage].micro_batches.resize(static_cast<std::size_t>(schedule_.micro_batches));
      stages_[stage].reduced.resize(static_cast<std::size_t>(bucket_count(stage)));
    }

    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        while (stages_[stage].next < schedule_.ranks[stage].size()) {
          const Outcome outcome = step(stage);
          if (!error_.empty()) return fault(error_);
          if (outcome == Outcome::waits) break;
          moved = true;
        }
      }
      if (release_barriers()) moved = true;
    }
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (stages_[stage].next < schedule_.ranks[stage].size()) return fault(describe_wait());
    }
    if (std::string missing = describe_missing(); !missing.empty()) return fault(std::move(missing));

    ScheduleCheck result{.valid = true};
    double makespan = 0.0, busiest = 0.0;
    for (const StageState& state : stages_) {
      makespan = std::max(makespan, state.time);
      busiest = std::max(busiest, state.busy);
      result.peak_in_flight.push_back(state.peak_in_flight);
    }
    result.bubble = makespan > 0.0 ? 1.0 - busiest / makespan : 0.0;
    return result;
  }

 private:
  enum class Outcome { done, waits };

  static ScheduleCheck fault(std::string message) { return {.valid = false, .error = std::move(message)}; }

  int bucket_count(std::size_t stage) const { return schedule_.buckets.empty() ? 0 : schedule_.buckets[stage]; }
  bool reduces_replicas(std::size_t stage) const {
    return !schedule_.replicas_to_reduce.empty() && schedule_.replicas_to_reduce[stage];
  }
  const Action& due(std::size_t stage) const { return schedule_.ranks[stage][stages_[stage].next]; }

  Outcome blame(std::size_t stage, const std::string& reason) {
    error_ = fmt::format("stage {}, action {} ({}): {}", stage, stages_[stage].next, action_label(due(stage)), reason);
    return Outcome::waits;
  }

  bool all_backwards_done(std::size_t stage) const {
    return std::all_of(stages_[stage].micro_batches.begin(), stages_[stage].micro_batches.end(),
                       [](const MicroBatchState& m) { return m.backward_input && m.backward_weight; });
  }

  Outcome finish(std::size_t stage, double cost = 0.0) {
    StageState& state = stages_[stage];
    state.time += cost;
    state.busy += cost;
    ++state.done[due(stage).kind];
    ++state.next;
    return Outcome::done;
  }

  Outcome step(std::size_t stage) {
    const Action& action = due(stage);
    switch (action.kind) {
      case ActionKind::receive_activation:
      case ActionKind::send_activation:
      case ActionKind::forward:
      case ActionKind::receive_gradient:
      case ActionKind::send_gradient:
      case ActionKind::backward:
      case ActionKind::backward_input:
      case ActionKind::backward_weight:
        if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches) {
          return blame(stage, fmt::format("the step has micro-batches 0 to {}", schedule_.micro_batches - 1));
        }
        return step_micro_batch(stage, action);
      default:
        return step_once(stage, action);
    }
  }

  Outcome step_micro_batch(std::size_t stage, const Action& action) {
    StageState& state = stages_[stage];
    MicroBatchState& m = state.micro_batches[static_cast<std::size_t>(action.micro_batch)];
    const int self = static_cast<int>(stage);
    const bool first = stage == 0, last = self + 1 == schedule_.stages;
    const bool backward_kind = action.kind != ActionKind::receive_activation &&
                               action.kind != ActionKind::send_activation && action.kind != ActionKind::forward;
    if (backward_kind && !schedule_.training) return blame(stage, "an evaluation has no backward pass");
    if (state.done[ActionKind::load] == 0) return blame(stage, "the step's samples are not loaded yet");
    switch (action.kind) {
      case ActionKind::receive_activation:
        if (first || action.peer != self - 1) return blame(stage, "activations come from the previous stage");
        if (m.received_activation) return blame(stage, "this activation was received before");
        return receive(stage, action, ActionKind::send_activation, m.received_activation);
      case ActionKind::receive_gradient:
        if (last || action.peer != self + 1) return blame(stage, "gradients come from the next stage");
        if (m.received_gradient) return blame(stage, "this gradient was received before");
        return receive(stage, action, ActionKind::send_gradient, m.received_gradient);
      case ActionKind::send_activation:
        if (last || action.peer != self + 1) return blame(stage, "activations go to the next stage");
        if (!m.forward) return blame(stage, "its forward has not run yet");
        if (m.sent_activation) return blame(stage, "this activation was sent before");
        return send(stage, action, m.sent_activation);
      case ActionKind::send_gradient:
        if (first || action.peer != self - 1) return blame(stage, "gradients go to the previous stage");
        if (!m.backward_input) return blame(stage, "its backward has not run yet");
        if (m.sent_gradient) return blame(stage, "this gradient was sent before");
        return send(stage, action, m.sent_gradient);
      case ActionKind::forward:
        if (action.chunk != 0) return blame(stage, "each stage has one chunk, 0");
        if (m.forward) return blame(stage, "a second forward of this micro-batch");
        if (!first && !m.received_activation) return blame(stage, "its input was not received: a receive is missing");
        if (schedule_.training && state.done[ActionKind::count_tokens] == 0) {
          return blame(stage, "the step's tokens are not counted yet");
        }
        m.forward = true;
        if (schedule_.training) {
          state.peak_in_flight = std::max(state.peak_in_flight, ++state.in_flight);
        } else {
          state.peak_in_flight = 1;
        }
        return finish(stage, forward_cost);
      case ActionKind::backward:
      case ActionKind::backward_input:
        if (action.chunk != 0) return blame(stage, "each stage has one chunk, 0");
        if (!m.forward) return blame(stage, "its forward has not run yet");
        if (m.backward_input) return blame(stage, "a second backward of this micro-batch");
        if (!last && !m.received_gradient) return blame(stage, "its gradient was not received: a receive is missing");
        m.backward_input = true;
        if (action.kind == ActionKind::backward_input) return finish(stage, backward_cost / 2);
        m.backward_weight = true;
        --state.in_flight;
        return finish(stage, backward_cost);
      default:
        if (action.chunk != 0) return blame(stage, "each stage has one chunk, 0");
        if (!m.backward_input) return blame(stage, "its backward_input has not run yet");
        if (m.backward_weight) return blame(stage, "a second backward of this micro-batch's weights");
        m.backward_weight = true;
        --state.in_flight;
        return finish(stage, backward_cost / 2);
    }
  }

  Outcome send(std::size_t stage, const Action& action, bool& sent) {
    channels_[{static_cast<int>(stage), action.peer}].push_back(
        {action.kind, action.micro_batch, stages_[stage].time});
    sent = true;
    return finish(stage);
  }

  Outcome receive(std::size_t stage, const Action& action, ActionKind sent_by, bool& received) {
    std::deque<Message>& channel = channels_[{action.peer, static_cast<int>(stage)}];
    if (channel.empty()) return Outcome::waits;
    const Message message = channel.front();
    if (message.sent_by != sent_by || message.micro_batch != action.micro_batch) {
      return blame(stage, fmt::format("messages out of order: the next one from stage {} is that of {} m{}", action.peer,
                                      action_kind_name(message.sent_by), message.micro_batch));
    }
    channel.pop_front();
    received = true;
    stages_[stage].time = std::max(stages_[stage].time, message.time);
    return finish(stage);
  }

  Outcome step_once(std::size_t stage, const Action& action) {
    StageState& state = stages_[stage];
    if (action.kind == ActionKind::evaluate || action.kind == ActionKind::checkpoint) {
      return blame(stage, "is done between steps, not inside one");
    }
    if (action.kind == ActionKind::reduce_bucket) {
      if (action.bucket < 0 || action.bucket >= bucket_count(stage)) {
        return blame(stage, fmt::format("the stage has {} gradient buckets", bucket_count(stage)));
      }
      int& reduced = state.reduced[static_cast<std::size_t>(action.bucket)];
      if (reduced != 0) return blame(stage, "this bucket was reduced before");
      if (!all_backwards_done(stage)) return blame(stage, "reduced before the last backward");
      if (action.bucket != state.reduced_buckets) {
        return blame(stage, fmt::format("buckets are reduced in the order in which they fill: {} is due",
                                        state.reduced_buckets));
      }
      if (action.bucket + 1 == bucket_count(stage) && reduces_replicas(stage) &&
          state.done[ActionKind::reduce_replicas] == 0) {
        return blame(stage, "the last bucket holds gradients that reduce_replicas has not summed yet");
      }
      ++reduced;
      ++state.reduced_buckets;
      return finish(stage);
    }
    if (state.done[action.kind] != 0) return blame(stage, "a step has one");
    if (action.kind == ActionKind::load) return finish(stage);
    if (!schedule_.training) return blame(stage, "an evaluation only loads and runs forward passes");
    switch (action.kind) {
      case ActionKind::count_tokens:
        if (state.done[ActionKind::load] == 0) return blame(stage, "the step's samples are not loaded yet");
        return finish(stage);
      case ActionKind::reduce_replicas:
        if (!reduces_replicas(stage)) return blame(stage, "the stage has no partial gradients");
        if (!all_backwards_done(stage)) return blame(stage, "summed before the last backward");
        return Outcome::waits;  // until every stage that has one arrives
      case ActionKind::wait_buckets:
        if (bucket_count(stage) == 0) return blame(stage, "the stage has no gradient buckets");
        if (state.reduced_buckets != bucket_count(stage)) {
          return blame(stage, fmt::format("{} of {} buckets were reduced", state.reduced_buckets, bucket_count(stage)));
        }
        return finish(stage);
      case ActionKind::gradient_norm:
        if (!all_backwards_done(stage)) return blame(stage, "a backward is missing before it");
        if (reduces_replicas(stage) && state.done[ActionKind::reduce_replicas] == 0) {
          return blame(stage, "reduce_replicas is missing before it");
        }
        if (bucket_count(stage) > 0 && state.done[ActionKind::wait_buckets] == 0) {
          return blame(stage, "wait_buckets is missing before it");
        }
        return Outcome::waits;  // until every stage arrives
      default:
        if (state.done[ActionKind::gradient_norm] == 0) return blame(stage, "gradient_norm is missing before it");
        return finish(stage);
    }
  }

  bool is_due(std::size_t stage, ActionKind kind) const {
    return stages_[stage].next < schedule_.ranks[stage].size() && due(stage).kind == kind;
  }

  /// Lets a collective over stages pass once all of its members stand before it.
  bool release_barriers() {
    bool released = false;
    for (const ActionKind kind : {ActionKind::reduce_replicas, ActionKind::gradient_norm}) {
      std::vector<std::size_t> members;
      bool all = true;
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        if (kind == ActionKind::reduce_replicas && !reduces_replicas(stage)) continue;
        members.push_back(stage);
        all = all && is_due(stage, kind);
      }
      if (!all || members.empty()) continue;
      double time = 0.0;
      for (const std::size_t stage : members) time = std::max(time, stages_[stage].time);
      for (const std::size_t stage : members) {
        stages_[stage].time = time;
        finish(stage);
      }
      released = true;
    }
    return released;
  }

  /// The first stage that waits for ever, in the words of what it waits for.
  std::string describe_wait() {
    std::optional<std::string> receive, collective;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (stages_[stage].next >= schedule_.ranks[stage].size()) continue;
      const Action& action = due(stage);
      const std::string where =
          fmt::format("stage {}, action {} ({})", stage, stages_[stage].next, action_label(action));
      if (action.peer < 0) {
        if (!collective) {
          for (std::size_t other = 0; other < stages_.size(); ++other) {
            if (is_due(other, action.kind)) continue;
            if (action.kind == ActionKind::reduce_replicas && !reduces_replicas(other)) continue;
            collective = fmt::format("{}: deadlock: stage {} never comes to its {}", where, other,
                                     action_kind_name(action.kind));
            break;
          }
        }
        continue;
      }
      if (receive) continue;
      const std::size_t peer = static_cast<std::size_t>(action.peer);
      const bool peer_ended = stages_[peer].next >= schedule_.ranks[peer].size();
      receive = fmt::format("{}: deadlock: waits for ever, ", where) +
                (peer_ended ? fmt::format("stage {} ended without this send", peer)
                            : fmt::format("stage {} itself waits at action {} ({})", peer, stages_[peer].next,
                                          action_label(due(peer))));
    }
    return receive ? *receive : collective.value_or("deadlock");
  }

  std::string describe_missing() {
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      StageState& state = stages_[stage];
      const bool first = stage == 0, last = stage + 1 == stages_.size();
      for (std::size_t m = 0; m < state.micro_batches.size(); ++m) {
        const MicroBatchState& done = state.micro_batches[m];
        const char* missing = !done.forward                                   ? "forward"
                              : !last && !done.sent_activation                ? "send_activation"
                              : !schedule_.training                           ? nullptr
                              : !done.backward_input                          ? "backward"
                              : !done.backward_weight                         ? "backward_weight"
                              : !first && !done.sent_gradient                 ? "send_gradient"
                                                                              : nullptr;
        if (missing != nullptr) return fmt::format("stage {}: no {} of micro-batch {}", stage, missing, m);
      }
      std::vector<ActionKind> needed{ActionKind::load};
      if (schedule_.training) {
        needed.insert(needed.end(), {ActionKind::count_tokens, ActionKind::gradient_norm, ActionKind::optimizer_step});
        if (reduces_replicas(stage)) needed.push_back(ActionKind::reduce_replicas);
        if (bucket_count(stage) > 0) needed.push_back(ActionKind::wait_buckets);
      }
      for (const ActionKind kind : needed) {
        if (state.done[kind] == 0) return fmt::format("stage {}: no {}", stage, action_kind_name(kind));
      }
    }
    for (const auto& [between, channel] : channels_) {
      if (channel.empty()) continue;
      return fmt::format("stage {}: {} m{} of stage {} is never received", between.second,
                         action_kind_name(channel.front().sent_by), channel.front().micro_batch, between.first);
    }
    return {};
  }

  const Schedule& schedule_;
  std::vector<StageState> stages_;
  std::map<std::pair<int, int>, std::deque<Message>> channels_;
  std::string error_;
};

}  // namespace

ScheduleCheck check(const Schedule& schedule) { return Player(schedule).play(); }

}  // namespace paceline
