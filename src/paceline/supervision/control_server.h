#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paceline/supervision/control_connection.h"
#include "paceline/supervision/stop_request.h"

namespace paceline {

/// Why the run cannot go on.
struct RankFailure {
  enum class Kind {
    reported,  ///< the rank said so itself
    lost,      ///< its connection ended before it had finished
    exited,    ///< its process ended (a launcher saw it)
    silent,    ///< its heartbeats stopped: frozen process or host, broken network
    stalled,   ///< its heart beats but its main thread makes no progress
    deadlock,  ///< every rank waits for another one
  };
  Kind kind = Kind::lost;
  int rank = 0;
  std::string reason;  ///< "rank 2 (pid 4711) is gone: killed by SIGKILL"
};

struct ControlServerOptions {
  int world_size = 1;
  std::string run_id;                      ///< who does not know it is refused
  std::string bind_address = "127.0.0.1";  ///< numeric
  std::string name;                        ///< how its clients call it: "the launcher (pid 12)"
  double silence_s = 5;                    ///< without a heartbeat: frozen
  double hang_timeout_s = 120;             ///< without progress: hung
  int host_rank = -1;                      ///< the rank in whose process it runs, told last that the run ends
};

/// The meeting point of a run's ranks: watches their heartbeats, finds out who failed first, tells the others, passes a
/// wish to stop on, and holds the table behind publish() and wait_for(). It has no thread: its owner calls serve() when
/// descriptor() is readable and at least every quarter of a second.
class ControlServer {
 public:
  /// Binds a free port and listens.
  explicit ControlServer(ControlServerOptions options);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  std::string address() const { return address_; }
  int descriptor() const { return events_.get(); }
  void serve();

  /// The first failure, a moment after it was noticed: a rank that blames another one, or that died of another's death,
  /// is not it. Stays the same once given.
  std::optional<RankFailure> first_failure();
  /// Something failed, and first_failure() will tell in a moment.
  bool failure_pending() const { return !first_ && !failures_.empty(); }
  /// Every rank said that it has finished.
  bool all_finished() const;
  /// A rank was asked (by a signal) to stop.
  std::optional<std::pair<StopCause, std::string>> stop_asked() const { return stop_asked_; }

  /// What a launcher saw of a rank's process: `how` is "killed by SIGKILL" or "exit code 3"; empty for a normal end.
  void note_exit(int rank, std::int64_t pid, const std::string& how);
  /// Asks all ranks, those that connect later too, to save and leave.
  void stop_all(StopCause cause, const std::string& reason);
  /// Tells all ranks, those that connect later too, that the run is over: each prints the reason and leaves with
  /// `code`.
  void end_all(const std::string& reason, int code);
  /// After end_all: every connection, but that of the rank in the server's own process, is gone.
  bool others_gone() const { return members_.size() == members_.count(options_.host_rank); }

  bool connected(int rank) const { return members_.contains(rank); }
  /// Seconds since the rank last made progress; since the start if it never did.
  double seconds_without_progress(int rank) const;
  /// "step 12, backward 3"; empty if it never said.
  std::string activity(int rank) const { return ranks_.at(rank).activity; }

 private:
  struct RankState {
    bool joined = false;
    bool finished = false;
    bool failed = false;
    std::int64_t pid = 0;
    std::string host;
    std::string activity;
    std::uint64_t progress = 0;
    int waiting_for = -1;
    double last_heard = 0;
    double last_progress = 0;
  };
  struct Peer {
    std::unique_ptr<ControlConnection> connection;
    int rank = -1;  ///< -1 until the handshake
    double since = 0;
    std::vector<std::string> waits;
  };
  struct Event {
    RankFailure failure;
    double time = 0;
    bool blames = false;
  };

  void accept_all();
  void read(int descriptor);
  bool handle(Peer& peer, const std::string& text);
  bool handshake(Peer& peer, const std::string& text);
  void send(Peer& peer, const std::string& message);
  void drop(int descriptor);
  void watch_writable(Peer& peer);
  void watch_ranks(double now);
  void answer_waits(const std::string& key);
  void add_failure(RankFailure::Kind kind, int rank, const std::string& what, bool blames = false);
  std::string rank_name(int rank) const;
  std::string stop_message() const;
  std::string end_message() const;

  ControlServerOptions options_;
  Descriptor listener_;
  Descriptor events_;
  std::string address_;
  std::map<int, Peer> peers_;    ///< by descriptor
  std::map<int, int> members_;   ///< rank -> descriptor
  std::vector<RankState> ranks_;
  std::vector<Event> failures_;  ///< in the order in which they were noticed
  std::optional<RankFailure> first_;
  std::map<std::string, std::string> table_;
  std::size_t table_bytes_ = 0;
  std::optional<std::pair<StopCause, std::string>> stop_asked_;
  std::optional<std::pair<StopCause, std::string>> stop_;
  std::optional<std::pair<std::string, int>> end_;
  double end_time_ = 0;
  bool host_told_ = false;
  double last_serve_ = 0;
  double last_beat_ = 0;
};

}  // namespace paceline
