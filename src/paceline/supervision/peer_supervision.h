#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "paceline/supervision/control_client.h"
#include "paceline/supervision/control_server.h"
#include "paceline/supervision/exchange.h"
#include "paceline/supervision/launch_environment.h"

namespace paceline {

struct SupervisionOptions {
  double silence_s = 5;         ///< without a heartbeat: frozen
  double hang_timeout_s = 120;  ///< without progress: hung
  /// Rank 0's, numeric. Empty: the loopback if all ranks are on this machine, else reachable_address().
  std::string bind_address;
  std::function<void(const std::string& reason, int code)> on_end;  ///< see ControlClientOptions
};

/// The supervision of one rank, whoever started it. Under the local launcher it connects to the launcher; under
/// torchrun, srun or mpirun rank 0 runs the control server in a thread and hands its address to the others through the
/// exchange; a single process has none. Stop requests go from any rank to all.
class RankSupervision {
 public:
  /// `exchange` is used only where the local launcher offers none; it may be empty under the launcher or for one rank.
  RankSupervision(const LaunchEnvironment& launch, const Exchange& exchange, StopRequest& stop,
                  SupervisionOptions options = {}, const EnvironmentVariable& variable = environment_variable);
  ~RankSupervision();
  RankSupervision(const RankSupervision&) = delete;
  RankSupervision& operator=(const RankSupervision&) = delete;

  Activity& activity() { return client_ ? client_->activity() : alone_; }
  /// The launcher's table, for a rendezvous; nothing where there is no launcher of ours.
  std::optional<Exchange> launcher_exchange();
  /// To be called before a rank leaves with an error. Returns when the others are told.
  void report_failure(const std::string& message, int blamed = -1);
  /// To be called before a rank leaves because it is done or was asked to stop. Where rank 0 hosts the server, it
  /// returns there when all ranks have finished, and fails if one could not.
  void finish();

 private:
  std::string start_server(const LaunchEnvironment& launch, const SupervisionOptions& options);
  void serve();
  void leave_server(double within_s);

  StopRequest& stop_;
  Activity alone_;
  bool under_launcher_ = false;
  std::string run_id_;
  std::unique_ptr<ControlServer> server_;
  std::thread server_thread_;  ///< the only user of server_ while it runs
  std::mutex mutex_;
  std::condition_variable changed_;
  bool told_ = false;           ///< the run is over, and the other ranks know or will not listen
  std::string failure_reason_;
  std::optional<double> leave_at_;
  std::unique_ptr<ControlClient> client_;
};

/// The address under which the other machines reach this one: what `master_addr` resolves to, or, where that is a
/// loopback (Debian maps the own host name to 127.0.1.1), the first address of an interface that is up. Numeric IPv4.
std::string reachable_address(const std::string& master_addr);

}  // namespace paceline
