#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace paceline {

/// What a rank is doing, written by its main thread for a few nanoseconds each time and read by its heartbeat thread.
/// A mixture of two states may be read for an instant; it is only ever shown.
class Activity {
 public:
  static constexpr int not_waiting = -1;
  static constexpr int any_rank = -2;

  /// A new piece of work: "step 12, backward 3". Counts as progress. `what` must be a string literal; step and item < 0
  /// are not shown.
  void begin(const char* what, std::int64_t step = -1, std::int64_t item = -1) {
    what_.store(what, std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
    item_.store(item, std::memory_order_relaxed);
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  /// Progress inside a long piece of work: a file written, a block read.
  void progressed() { progress_.fetch_add(1, std::memory_order_relaxed); }

  /// While it lives, the rank waits for `rank` (or any_rank: for its peers) and is not taken for the one that hangs.
  class Waiting {
   public:
    Waiting(Activity& activity, int rank)
        : activity_(activity), before_(activity.waiting_for_.exchange(rank, std::memory_order_relaxed)) {}
    ~Waiting() {
      activity_.waiting_for_.store(before_, std::memory_order_relaxed);
      activity_.progressed();
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Activity& activity_;
    int before_;
  };

  std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  int waiting_for() const { return waiting_for_.load(std::memory_order_relaxed); }
  /// "step 12, backward 3"
  std::string text() const;

 private:
  std::atomic<const char*> what_{"start"};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::int64_t> item_{-1};
  std::atomic<int> waiting_for_{not_waiting};
  std::atomic<std::uint64_t> progress_{0};
};

}  // namespace paceline
