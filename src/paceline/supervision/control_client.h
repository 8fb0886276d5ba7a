#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "paceline/supervision/activity.h"
#include "paceline/supervision/control_connection.h"
#include "paceline/supervision/exchange.h"
#include "paceline/supervision/stop_request.h"

namespace paceline {

struct ControlClientOptions {
  std::string address;  ///< host:port of the server
  std::string run_id;
  int rank = 0;
  double beat_s = 0.5;   ///< seconds between heartbeats
  double silence_s = 5;  ///< without a word from the server: it is frozen
  /// The run is over; by now the line that says why is on standard error. Called on the client's thread. Default:
  /// `_exit(code)`, since the main thread may sit in a collective that never returns.
  std::function<void(const std::string& reason, int code)> on_end;
  /// All ranks are asked to save and leave. Called on the client's thread.
  std::function<void(StopCause cause, const std::string& reason)> on_stop;
};

/// A rank's side of the control connection: one thread that sends heartbeats with the rank's progress and obeys.
/// A client that is destroyed without finish() counts as a rank that failed.
class ControlClient {
 public:
  /// Connects and shakes hands within 10 s, or fails with the reason.
  explicit ControlClient(ControlClientOptions options);
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  Activity& activity() { return activity_; }

  /// The run's shared table. Keys of up to 128 bytes, values of up to 4096, both UTF-8; the last value published stays.
  void publish(const std::string& key, const std::string& value);
  /// Blocks until some rank has published `key`; fails after `timeout_s`.
  std::string wait_for(const std::string& key, double timeout_s = 300);
  Exchange exchange();

  /// Asks all ranks, this one too, to save and leave.
  void request_stop(StopCause cause, const std::string& reason);
  /// Says that this rank cannot go on, or, with `blamed` >= 0, that another rank does not answer it (then the server
  /// waits a few seconds whether that one proves dead). Returns when it is sent.
  void report_failure(const std::string& message, int blamed = -1);
  /// The rank's work is done: it may now leave. Returns when the server has heard it.
  void finish();

 private:
  void run();
  bool obey(const std::string& text);
  void end(const std::string& reason, int code);
  void post(std::string message);
  void post_and_flush(std::string message);
  std::string beat() const;

  ControlClientOptions options_;
  Activity activity_;
  std::string server_name_;
  std::unique_ptr<ControlConnection> connection_;
  Descriptor wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> outgoing_;
  std::map<std::string, std::string> values_;
  bool sent_all_ = true;
  bool finishing_ = false;
  bool finished_ = false;
  bool leave_ = false;
  std::atomic<bool> failed_{false};
  std::string end_reason_;
  std::thread thread_;
};

}  // namespace paceline
