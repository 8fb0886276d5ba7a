#pragma once

#include "paceline/comm/work.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace paceline {

/// One thread that runs operations one after the other in the order in which they were started. The thread starts with
/// the first operation.
class CommunicationThread {
 public:
  CommunicationThread() = default;
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;
  /// Runs what is queued to its end.
  ~CommunicationThread();

  /// The work's `wait` throws what the operation threw. A work destroyed without `wait` waits for its operation, since
  /// that uses the caller's memory.
  std::unique_ptr<Work> start(std::function<void()> operation);
  /// Runs an operation that nobody waits for; it throws nothing.
  void post(std::function<void()> operation);

 private:
  struct Job {
    std::function<void()> operation;
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr error;
  };
  class JobWork;
  std::shared_ptr<Job> enqueue(std::function<void()> operation);
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace paceline
