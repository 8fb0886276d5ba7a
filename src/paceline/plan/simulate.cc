#include "paceline/plan/simulate.h"

#include "paceline/base/error.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>

namespace paceline {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// What a stage does at a moment.
enum class Phase {
  ready,      ///< the next action can begin
  computing,  ///< `remaining` seconds of processor time are left
  sleeping,   ///< until `wakes_at`
  receiving,  ///< for a message that is not sent yet
  meeting,    ///< for the other stages of a collective
  ended,
};

struct StageClock {
  Phase phase = Phase::ready;
  std::size_t next = 0;
  double started = 0;
  double remaining = 0;
  double wakes_at = never;
  Duration due;                ///< of the action that runs
  double lane_free = 0;        ///< of the communication lane
  double last_backward_start = 0, last_backward_duration = 0;
};

class Player {
 public:
  Player(const TrainingStep& step, const CostModel& costs, const Place& place)
      : step_(step), schedule_(step.schedule), costs_(costs), clocks_(step.stages.size()) {
    const Layout& layout = step.settings.parallel.layout;
    threads_per_stage_ = static_cast<double>(layout.dp * layout.tp * costs.threads_per_rank());
    cores_ = static_cast<double>(place.cores);
    for (const std::vector<Action>& actions : schedule_.ranks) result_.stages.emplace_back(actions.size());
    result_.use.resize(clocks_.size());
  }

  Simulation play() {
    for (;;) {
      while (settle()) {
      }
      const double computing = static_cast<double>(
          std::count_if(clocks_.begin(), clocks_.end(), [](const StageClock& c) { return c.phase == Phase::computing; }));
      const double speed = computing == 0 ? 1.0 : std::min(1.0, cores_ / (computing * threads_per_stage_));
      double next = never;
      for (const StageClock& clock : clocks_) {
        if (clock.phase == Phase::computing) next = std::min(next, now_ + clock.remaining / speed);
        if (clock.phase == Phase::sleeping) next = std::min(next, clock.wakes_at);
      }
      if (next == never) break;
      for (StageClock& clock : clocks_) {
        if (clock.phase == Phase::computing) clock.remaining -= (next - now_) * speed;
      }
      now_ = next;
      for (std::size_t stage = 0; stage < clocks_.size(); ++stage) {
        StageClock& clock = clocks_[stage];
        if (clock.phase == Phase::computing && clock.remaining <= 1e-12) finish_computing(stage);
        if (clock.phase == Phase::sleeping && clock.wakes_at <= now_) finish(stage);
      }
    }
    for (const StageClock& clock : clocks_) PACELINE_CHECK(clock.phase == Phase::ended);  // the schedule was checked
    result_.step_time_s = now_;
    for (StageUse& use : result_.use) {
      use.waiting_s = std::max(0.0, now_ - use.compute_s - use.communication_s - use.update_s);
    }
    return std::move(result_);
  }

 private:
  const Action& due(std::size_t stage) const { return schedule_.ranks[stage][clocks_[stage].next]; }

  /// Begins what can begin at this moment; true if anything moved.
  bool settle() {
    bool moved = false;
    for (std::size_t stage = 0; stage < clocks_.size(); ++stage) {
      StageClock& clock = clocks_[stage];
      if (clock.phase == Phase::ready) {
        if (clock.next == schedule_.ranks[stage].size()) {
          clock.phase = Phase::ended;
        } else {
          begin(stage);
        }
        moved = true;
      } else if (clock.phase == Phase::receiving) {
        moved = take_message(stage) || moved;
      }
    }
    for (const ActionKind kind : {ActionKind::reduce_replicas, ActionKind::gradient_norm}) moved = meet(kind) || moved;
    return moved;
  }

  void begin(std::size_t stage) {
    StageClock& clock = clocks_[stage];
    clock.started = now_;
    const Action& action = due(stage);
    switch (action.kind) {
      case ActionKind::receive_activation:
      case ActionKind::receive_gradient:
        clock.phase = Phase::receiving;
        return;
      case ActionKind::reduce_bucket:
        reduce_bucket(stage, action.bucket);
        return;
      case ActionKind::wait_buckets:
        result_.use[stage].communication_s += std::max(0.0, clock.lane_free - now_);
        sleep_until(stage, std::max(now_, clock.lane_free));
        return;
      default:
        clock.due = costs_.action(static_cast<int>(stage), action);
        clock.remaining = clock.due.compute_s;
        clock.phase = Phase::computing;
        if (clock.remaining <= 0) finish_computing(stage);
    }
  }

  void sleep_until(std::size_t stage, double time) {
    clocks_[stage].phase = Phase::sleeping;
    clocks_[stage].wakes_at = time;
    if (time <= now_) finish(stage);
  }

  void finish_computing(std::size_t stage) {
    StageClock& clock = clocks_[stage];
    const Action& action = due(stage);
    const double used = now_ - clock.started;
    const bool updates = action.kind == ActionKind::gradient_norm || action.kind == ActionKind::optimizer_step;
    (updates ? result_.use[stage].update_s : result_.use[stage].compute_s) += used;
    if (action.kind == ActionKind::send_activation || action.kind == ActionKind::send_gradient) {
      messages_[{static_cast<int>(stage), action.peer}].push_back(now_ + costs_.transfer_s());
    }
    if (action.kind == ActionKind::gradient_norm || action.kind == ActionKind::reduce_replicas) {
      clock.phase = Phase::meeting;
      return;
    }
    result_.use[stage].communication_s += clock.due.message_s;
    sleep_until(stage, now_ + clock.due.message_s);
  }

  bool take_message(std::size_t stage) {
    std::deque<double>& channel = messages_[{due(stage).peer, static_cast<int>(stage)}];
    if (channel.empty()) return false;
    const double arrives = channel.front();
    channel.pop_front();
    // Of the wait, the message's own time is communication; the rest is the other stage's.
    const double flight = std::min(costs_.transfer_s(), arrives - clocks_[stage].started);
    result_.use[stage].communication_s += std::max(0.0, flight);
    sleep_until(stage, std::max(now_, arrives));
    return true;
  }

  /// Lets a collective over stages go once all of its members are there.
  bool meet(ActionKind kind) {
    std::vector<std::size_t> members;
    for (std::size_t stage = 0; stage < clocks_.size(); ++stage) {
      const bool joins = kind == ActionKind::gradient_norm || schedule_.replicas_to_reduce[stage];
      if (!joins) continue;
      const bool is_there = clocks_[stage].phase == Phase::meeting && due(stage).kind == kind;
      if (!is_there) return false;
      members.push_back(stage);
    }
    for (const std::size_t stage : members) {
      result_.use[stage].communication_s += clocks_[stage].due.message_s;
      sleep_until(stage, now_ + clocks_[stage].due.message_s);
    }
    return !members.empty();
  }

  /// On the communication lane, from when the last backward has produced the bucket's gradients.
  void reduce_bucket(std::size_t stage, int bucket) {
    StageClock& clock = clocks_[stage];
    const double share = costs_.bucket_ready_share(static_cast<int>(stage), bucket);
    const bool after_replicas = step_.buckets[stage].completed_by[static_cast<std::size_t>(bucket)] < 0;
    const double ready = after_replicas ? now_ : clock.last_backward_start + share * clock.last_backward_duration;
    const double start = std::max(ready, clock.lane_free);
    const double seconds = costs_.bucket_s(static_cast<int>(stage), bucket);
    clock.lane_free = start + seconds;
    result_.stages[stage][clock.next++] = {start, seconds};
    clock.phase = Phase::ready;
  }

  void finish(std::size_t stage) {
    StageClock& clock = clocks_[stage];
    const ActionKind kind = due(stage).kind;
    if (kind == ActionKind::backward || kind == ActionKind::backward_weight) {
      clock.last_backward_start = clock.started;
      clock.last_backward_duration = now_ - clock.started;
    }
    result_.stages[stage][clock.next++] = {clock.started, now_ - clock.started};
    clock.phase = Phase::ready;
    clock.wakes_at = never;
  }

  const TrainingStep& step_;
  const Schedule& schedule_;
  const CostModel& costs_;
  std::vector<StageClock> clocks_;
  std::map<std::pair<int, int>, std::deque<double>> messages_;  ///< (from, to) -> times of arrival
  double threads_per_stage_ = 1;
  double cores_ = 1;
  double now_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const TrainingStep& step, const CostModel& costs, const Place& place) {
  return Player(step, costs, place).play();
}

}  // namespace paceline
