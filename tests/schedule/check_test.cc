#include "paceline/base/philox.h"
#include "paceline/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

namespace paceline {
namespace {

using ::testing::HasSubstr;

constexpr PipelineSchedule kinds[] = {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward};

Schedule with_everything(PipelineSchedule kind, int stages, int micro_batches) {
  ScheduleOptions options{.kind = kind, .stages = stages, .micro_batches = micro_batches};
  for (int stage = 0; stage < stages; ++stage) {
    options.buckets.push_back(1 + (stage * 7 + micro_batches) % 3);
    options.replicas_to_reduce.push_back(stages > 1 && (stage == 0 || stage + 1 == stages));
  }
  return build_training_schedule(options);
}

/// The position of an action in a stage's list; the tests below edit lists by it.
std::size_t find(const Schedule& schedule, std::size_t stage, const std::string& label) {
  for (std::size_t i = 0; i < schedule.ranks[stage].size(); ++i) {
    if (action_label(schedule.ranks[stage][i]) == label) return i;
  }
  ADD_FAILURE() << "no " << label;
  return 0;
}

void erase(Schedule& schedule, std::size_t stage, const std::string& label) {
  schedule.ranks[stage].erase(schedule.ranks[stage].begin() + static_cast<long>(find(schedule, stage, label)));
}

void swap(Schedule& schedule, std::size_t stage, const std::string& a, const std::string& b) {
  std::swap(schedule.ranks[stage][find(schedule, stage, a)], schedule.ranks[stage][find(schedule, stage, b)]);
}

TEST(Check, AllSizesOfBothKindsAreValidWithTheirBubbleAndPeak) {
  for (const PipelineSchedule kind : kinds) {
    for (int p = 1; p <= 6; ++p) {
      for (int m = 1; m <= 12; ++m) {
        SCOPED_TRACE(pipeline_schedule_name(kind) + " stages " + std::to_string(p) + " micro-batches " +
                     std::to_string(m));
        const ScheduleCheck result = check(with_everything(kind, p, m));
        ASSERT_TRUE(result.valid) << result.error;
        EXPECT_NEAR(result.bubble, static_cast<double>(p - 1) / (m + p - 1), 1e-12);
        ASSERT_EQ(result.peak_in_flight.size(), static_cast<std::size_t>(p));
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(result.peak_in_flight[static_cast<std::size_t>(s)],
                    kind == PipelineSchedule::gpipe ? m : std::min(m, p - s));
        }
        const ScheduleCheck evaluation = check(build_evaluation_schedule(p, m));
        ASSERT_TRUE(evaluation.valid) << evaluation.error;
        EXPECT_EQ(evaluation.peak_in_flight, std::vector<int>(static_cast<std::size_t>(p), 1));
      }
    }
  }
}

TEST(Check, NamesAMissingReceive) {
  Schedule schedule = with_everything(PipelineSchedule::one_forward_one_backward, 2, 2);
  erase(schedule, 1, "receive_activation m1 from stage 0");
  const ScheduleCheck result = check(schedule);
  EXPECT_FALSE(result.valid);
  EXPECT_THAT(result.error, HasSubstr("stage 1"));
  EXPECT_THAT(result.error, HasSubstr("forward m1"));
  EXPECT_THAT(result.error, HasSubstr("a receive is missing"));
}

TEST(Check, NamesAMissingSendAsADeadlock) {
  Schedule schedule = with_everything(PipelineSchedule::one_forward_one_backward, 2, 1);
  erase(schedule, 0, "send_activation m0 to stage 1");
  const ScheduleCheck result = check(schedule);
  EXPECT_FALSE(result.valid);
  EXPECT_THAT(result.error, HasSubstr("deadlock"));
  EXPECT_THAT(result.error, HasSubstr("receive_gradient m0 from stage 1"));
}

TEST(Check, NamesBothSidesOfADeadlock) {
  Schedule schedule = with_everything(PipelineSchedule::one_forward_one_backward, 2, 2);
  swap(schedule, 0, "send_activation m1 to stage 1", "receive_gradient m0 from stage 1");
  swap(schedule, 1, "receive_activation m1 from stage 0", "send_gradient m0 to stage 0");
  const ScheduleCheck result = check(schedule);
  EXPECT_FALSE(result.valid);
  EXPECT_EQ(result.error.substr(0, result.error.find(" (")), "stage 0, action 5");
  EXPECT_THAT(result.error, HasSubstr("stage 1 itself waits at"));
  EXPECT_THAT(result.error, HasSubstr("receive_activation m1 from stage 0"));
}

TEST(Check, RefusesMessagesOutOfOrder) {
  Schedule schedule = with_everything(PipelineSchedule::gpipe, 2, 2);
  swap(schedule, 1, "receive_activation m0 from stage 0", "receive_activation m1 from stage 0");
  swap(schedule, 1, "forward m0", "forward m1");
  const ScheduleCheck result = check(schedule);
  EXPECT_FALSE(result.valid);
  EXPECT_THAT(result.error, HasSubstr("out of order"));
}

TEST(Check, RefusesADuplicateAndAMissingBackward) {
  Schedule duplicate = with_everything(PipelineSchedule::gpipe, 1, 2);
  const std::size_t at = find(duplicate, 0, "backward m1");
  duplicate.ranks[0].insert(duplicate.ranks[0].begin() + static_cast<long>(at), duplicate.ranks[0][at]);
  EXPECT_THAT(check(duplicate).error, HasSubstr("a second backward"));

  Schedule missing = with_everything(PipelineSchedule::gpipe, 1, 2);
  erase(missing, 0, "backward m1");
  EXPECT_FALSE(check(missing).valid);
  EXPECT_THAT(check(missing).error, HasSubstr("before the last backward"));
}

TEST(Check, RefusesABucketReducedEarlyTwiceOrNever) {
  Schedule early = with_everything(PipelineSchedule::gpipe, 1, 2);
  swap(early, 0, "reduce_bucket 0", "backward m1");
  EXPECT_THAT(check(early).error, HasSubstr("before the last backward"));

  Schedule twice = with_everything(PipelineSchedule::gpipe, 1, 2);
  const std::size_t at = find(twice, 0, "reduce_bucket 0");
  twice.ranks[0].insert(twice.ranks[0].begin() + static_cast<long>(at), twice.ranks[0][at]);
  EXPECT_THAT(check(twice).error, HasSubstr("this bucket was reduced before"));

  Schedule never = with_everything(PipelineSchedule::gpipe, 1, 2);
  erase(never, 0, "reduce_bucket 2");
  EXPECT_THAT(check(never).error, HasSubstr("2 of 3 buckets were reduced"));
}

TEST(Check, AcceptsTheSplitBackward) {
  Schedule schedule = build_training_schedule({.stages = 2, .micro_batches = 3});
  for (std::vector<Action>& rank : schedule.ranks) {
    std::vector<Action> split;
    std::vector<Action> weights;
    for (Action action : rank) {
      if (action.kind == ActionKind::backward) {
        action.kind = ActionKind::backward_input;
        split.push_back(action);
        action.kind = ActionKind::backward_weight;
        weights.push_back(action);
        continue;
      }
      if (action.kind == ActionKind::gradient_norm) split.insert(split.end(), weights.begin(), weights.end());
      split.push_back(action);
    }
    rank = split;
  }
  const ScheduleCheck result = check(schedule);
  EXPECT_TRUE(result.valid) << result.error;
  EXPECT_EQ(result.peak_in_flight, (std::vector<int>{3, 3}));
  EXPECT_LT(result.bubble, 1.0 / 4.0);  // 1F1B's: the weight halves fill the cool-down
}

TEST(Check, RefusesABackwardInAnEvaluation) {
  Schedule schedule = build_evaluation_schedule(1, 1);
  schedule.ranks[0].push_back({.kind = ActionKind::backward, .micro_batch = 0, .chunk = 0});
  EXPECT_THAT(check(schedule).error, HasSubstr("no backward pass"));
}

// The oracle of the mutation test states the rules in another way than the player does: what the lists must contain,
// what must precede what in each list, which messages match, and that all orders together have no cycle.
using Key = std::tuple<int, int, int, int, int, int>;
Key key(const Action& a) {
  return {static_cast<int>(a.kind), a.micro_batch, a.chunk, a.peer, a.bucket, static_cast<int>(a.lane)};
}

bool oracle(const Schedule& mutated, const Schedule& valid) {
  const std::size_t stages = mutated.ranks.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::vector<Key> have, want;
    for (const Action& action : mutated.ranks[stage]) have.push_back(key(action));
    for (const Action& action : valid.ranks[stage]) want.push_back(key(action));
    std::map<std::pair<ActionKind, int>, std::size_t> position;
    std::size_t last_backward = 0;
    for (std::size_t i = 0; i < have.size(); ++i) {
      const Action& action = mutated.ranks[stage][i];
      position[{action.kind, std::max(action.micro_batch, action.bucket)}] = i;
      if (action.kind == ActionKind::backward) last_backward = i;
    }
    std::sort(have.begin(), have.end());
    std::sort(want.begin(), want.end());
    if (have != want) return false;
    using enum ActionKind;
    const auto before = [&](ActionKind a, int m, ActionKind b, int n) {
      const auto first = position.find({a, m}), second = position.find({b, n});
      return first == position.end() || second == position.end() || first->second < second->second;
    };
    bool ordered = before(load, -1, count_tokens, -1) && before(reduce_replicas, -1, gradient_norm, -1) &&
                   before(wait_buckets, -1, gradient_norm, -1) && before(gradient_norm, -1, optimizer_step, -1);
    for (int m = 0; m < mutated.micro_batches; ++m) {
      ordered = ordered && before(count_tokens, -1, forward, m) && before(load, -1, receive_activation, m) &&
                before(receive_activation, m, forward, m) && before(forward, m, send_activation, m) &&
                before(forward, m, backward, m) && before(receive_gradient, m, backward, m) &&
                before(backward, m, send_gradient, m);
    }
    for (const ActionKind kind : {reduce_replicas, gradient_norm}) {
      const auto found = position.find({kind, -1});
      ordered = ordered && (found == position.end() || last_backward < found->second);
    }
    for (int b = 0; b < mutated.buckets[stage]; ++b) {
      ordered = ordered && last_backward < position[{reduce_bucket, b}] && before(reduce_bucket, b, wait_buckets, -1);
      if (b > 0) ordered = ordered && before(reduce_bucket, b - 1, reduce_bucket, b);
    }
    if (!ordered || !before(reduce_replicas, -1, reduce_bucket, mutated.buckets[stage] - 1)) return false;
    for (int m = 0; m < mutated.micro_batches; ++m) {
      if (!before(load, -1, receive_gradient, m)) return false;
    }
  }

  // Nodes are (stage, index); a collective over stages is one node.
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> node;
  std::map<ActionKind, std::size_t> collective;
  std::size_t nodes = 0;
  for (std::size_t stage = 0; stage < stages; ++stage) {
    for (std::size_t i = 0; i < mutated.ranks[stage].size(); ++i) {
      const ActionKind kind = mutated.ranks[stage][i].kind;
      if (kind == ActionKind::gradient_norm || kind == ActionKind::reduce_replicas) {
        if (!collective.contains(kind)) collective[kind] = nodes++;
        node[{stage, i}] = collective[kind];
      } else {
        node[{stage, i}] = nodes++;
      }
    }
  }
  std::vector<std::vector<std::size_t>> next(nodes);
  std::vector<int> incoming(nodes);
  const auto edge = [&](std::size_t from, std::size_t to) {
    next[from].push_back(to);
    ++incoming[to];
  };
  for (std::size_t stage = 0; stage < stages; ++stage) {
    for (std::size_t i = 0; i + 1 < mutated.ranks[stage].size(); ++i) edge(node[{stage, i}], node[{stage, i + 1}]);
  }
  for (std::size_t stage = 0; stage + 1 < stages; ++stage) {
    for (const bool forwards : {true, false}) {
      const std::size_t from = forwards ? stage : stage + 1, to = forwards ? stage + 1 : stage;
      const ActionKind sends = forwards ? ActionKind::send_activation : ActionKind::send_gradient;
      const ActionKind receives = forwards ? ActionKind::receive_activation : ActionKind::receive_gradient;
      std::vector<std::size_t> sent, received;
      for (std::size_t i = 0; i < mutated.ranks[from].size(); ++i) {
        if (mutated.ranks[from][i].kind == sends) sent.push_back(i);
      }
      for (std::size_t i = 0; i < mutated.ranks[to].size(); ++i) {
        if (mutated.ranks[to][i].kind == receives) received.push_back(i);
      }
      for (std::size_t k = 0; k < sent.size(); ++k) {
        if (mutated.ranks[from][sent[k]].micro_batch != mutated.ranks[to][received[k]].micro_batch) return false;
        edge(node[{from, sent[k]}], node[{to, received[k]}]);
      }
    }
  }
  std::queue<std::size_t> ready;
  for (std::size_t i = 0; i < nodes; ++i) {
    if (incoming[i] == 0) ready.push(i);
  }
  std::size_t done = 0;
  for (; !ready.empty(); ready.pop(), ++done) {
    for (const std::size_t to : next[ready.front()]) {
      if (--incoming[to] == 0) ready.push(to);
    }
  }
  return done == nodes;
}

TEST(Check, AgreesWithTheOracleOnRandomMutations) {
  const std::uint64_t stream = stream_key(3, "schedule mutations");
  std::uint64_t draw = 0;
  const auto pick = [&](std::size_t size) { return static_cast<std::size_t>(random_bits(stream, draw++) % size); };
  int accepted = 0, rejected = 0;
  for (const PipelineSchedule kind : kinds) {
    for (int p = 1; p <= 5; ++p) {
      for (int m = 1; m <= 6; ++m) {
        const Schedule valid = with_everything(kind, p, m);
        ASSERT_TRUE(oracle(valid, valid));
        for (int trial = 0; trial < 200; ++trial) {
          Schedule mutated = valid;
          std::string what;
          for (std::size_t edits = 1 + pick(2); edits > 0; --edits) {
            std::vector<Action>& list = mutated.ranks[pick(mutated.ranks.size())];
            const std::size_t a = pick(list.size());
            // Neighbours are swapped most often: those are the mutations that may leave the schedule valid.
            switch (const std::size_t choice = pick(6)) {
              case 0: what += "remove " + action_label(list[a]); list.erase(list.begin() + static_cast<long>(a)); break;
              case 1: what += "double " + action_label(list[a]); list.insert(list.begin() + static_cast<long>(pick(list.size())), Action(list[a])); break;
              default: {
                const std::size_t b = choice == 2 ? pick(list.size()) : (a + 1) % list.size();
                what += "swap " + action_label(list[a]) + " and " + action_label(list[b]);
                std::swap(list[a], list[b]);
              }
            }
            what += "; ";
          }
          const ScheduleCheck result = check(mutated);
          ASSERT_EQ(result.valid, oracle(mutated, valid))
              << pipeline_schedule_name(kind) << " " << p << " x " << m << ": " << what << result.error;
          EXPECT_EQ(result.valid, result.error.empty());
          (result.valid ? accepted : rejected) += 1;
        }
      }
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(rejected, 5000);
}

}  // namespace
}  // namespace paceline
