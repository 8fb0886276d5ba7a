#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

struct LocalLaunchOptions {
  std::filesystem::path log_folder;  ///< gets rank_0.log, rank_1.log, ...
  std::vector<std::pair<std::string, std::string>> environment;  ///< set in every rank, over what is inherited
  double grace_s = 8;         ///< a rank that was asked to leave and makes no progress for so long is killed
  double silence_s = 5;       ///< a rank without a heartbeat for so long is frozen
  double hang_timeout_s = 120;  ///< a rank without progress for so long hangs
};

/// Runs this very program `nproc` times as the ranks of one run on this machine, with `command` as their arguments
/// (command[0] is the name that `ps` shows), and stays as their supervisor until none is left.
///
/// Each rank gets torchrun's variables, PACELINE_CONTROL (host:port of the control server) and PACELINE_RUN_ID;
/// OMP_NUM_THREADS unless set; other launchers' variables are taken away. MASTER_PORT is a port that is bound and
/// listens already, on the loopback only: rank 0 inherits the socket, as descriptor number PACELINE_STORE_SOCKET, for
/// its store. PACELINE_TERMINAL_COLUMNS is set in rank 0 where standard error is a terminal. The ranks die with this
/// process.
///
/// Rank 0's output is shown and logged; the other ranks' is logged, their standard error also shown, with "[rank 1] ".
/// When a rank dies or hangs, the others are ended within seconds, and the last line names the one that failed first.
/// SIGTERM, SIGHUP and SIGINT, here or at one rank, ask all ranks to save and leave; a second SIGINT kills them.
///
/// Returns 0 only when all ranks have finished; 143 or 130 when they left on SIGTERM or SIGINT; else the code of the
/// rank that failed first, 128 + signal if a signal killed it.
int launch_local(int nproc, const std::vector<std::string>& command, const LocalLaunchOptions& options);

}  // namespace paceline
