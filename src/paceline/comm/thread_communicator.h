#pragma once

#include "paceline/comm/transport.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace paceline {

/// Joins ranks that are threads of one process. A message that is expected already is copied straight to its place;
/// one that is not is kept until it is asked for.
class Hub {
 public:
  /// A receive that waits longer than `timeout` throws.
  explicit Hub(int size, std::chrono::milliseconds timeout = std::chrono::minutes(5));
  ~Hub();

  int size() const;
  std::shared_ptr<Transport> transport(int rank);
  /// Ends all ranks' pending and later calls. An abort by one rank's transport does the same.
  void abort(const std::string& reason);

 private:
  struct State;
  class RankTransport;
  std::shared_ptr<State> state_;
};

/// Runs `body(rank, hub)` on `size` threads, each with its share of the processor's cores. When one throws, the others
/// are aborted, and the first exception is rethrown after all have ended.
void run_ranks(int size, const std::function<void(int rank, Hub& hub)>& body);

}  // namespace paceline
