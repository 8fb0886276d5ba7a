#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "paceline/supervision/descriptor.h"

namespace paceline {

/// Why a run is asked to save and leave before its end.
enum class StopCause : int { none, terminate, interrupt, time_limit };

/// "SIGTERM", "SIGINT", "the time limit"
const char* stop_cause_text(StopCause cause);

/// The program's exit code after a stop with everything saved: 130 after SIGINT, else 143. 0 is for finished runs only.
int stop_exit_code(StopCause cause);

/// The process's wish to stop: set by SIGTERM, SIGINT, a time limit, or by ask(). The training loop looks at
/// requested() once a step. SIGTERM and SIGINT are blocked and read by one thread from a signalfd, so nothing runs in a
/// signal handler. Construct it before any other thread exists (a thread that leaves them unblocked would get the
/// default action), one at a time. A SIGINT that comes a second or more after the first request ends the process at
/// once with code 130.
class StopRequest {
 public:
  /// `max_minutes`: the time limit from now on; none or <= 0 is no limit.
  explicit StopRequest(std::optional<double> max_minutes = std::nullopt);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const { return cause_.load(std::memory_order_relaxed) != StopCause::none; }
  StopCause cause() const { return cause_.load(std::memory_order_acquire); }
  /// "SIGTERM", or what ask() was told: "SIGTERM at rank 1".
  std::string reason() const;

  /// Asks from inside the program. The first request stays.
  void ask(StopCause cause, const std::string& reason);

  /// Called once, from any thread, for a signal or the time limit, not for ask(): where to pass the wish on to the
  /// other ranks. Called at once if it already happened.
  void on_request(std::function<void(StopCause, const std::string& reason)> call);

 private:
  void watch(std::optional<double> max_minutes);
  void request(StopCause cause, const std::string& reason, bool own);

  std::atomic<StopCause> cause_{StopCause::none};
  mutable std::mutex mutex_;
  StopCause first_cause_ = StopCause::none;  ///< set before cause_
  std::string reason_;
  bool own_ = false;
  std::function<void(StopCause, const std::string&)> call_;
  Descriptor signals_;
  Descriptor end_;
  sigset_t previous_mask_;
  std::thread thread_;
};

}  // namespace paceline
