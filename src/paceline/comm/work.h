#pragma once

namespace paceline {

/// An operation that was started. Destroying it without `wait` gives the operation up.
class Work {
 public:
  virtual ~Work() = default;

  /// Returns when the operation is complete; throws Error, naming group and ranks, when the communicator was aborted,
  /// the peer is gone or the time limit has passed. To be called once.
  virtual void wait() = 0;
};

}  // namespace paceline
