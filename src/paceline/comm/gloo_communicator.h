#pragma once

#include "paceline/comm/transport.h"

#include <chrono>
#include <memory>
#include <string>

namespace paceline {

/// How the ranks of a run, one process each, find each other.
struct GlooOptions {
  int rank = 0;
  int world_size = 1;
  std::string master_address = "127.0.0.1";  ///< MASTER_ADDR: rank 0's host
  int master_port = 0;                       ///< MASTER_PORT: where rank 0 listens; 0 only in a world of one rank
  /// Rank 0 only: a bound and listening socket at `master_port` to be taken over, so that the port need not be guessed.
  int listening_descriptor = -1;
  /// A launcher hosts the store at that address (torchrun: TORCHELASTIC_USE_AGENT_STORE=True); rank 0 does not listen.
  bool launcher_hosts_store = false;
  std::string run_id;  ///< the same on all ranks of one run and no other: two runs never join
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(2);
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< of a single receive or send
};

/// Joins the ranks over TCP with c10d's Gloo. Its address is the one on the route to the master, or of the interfaces
/// that GLOO_SOCKET_IFNAME names. Returns when all ranks are connected. Throws Error that names the variable or the
/// rank when the port is taken, the name unknown, the interface missing, another run answers, or a rank does not come.
///
/// A rank whose process ends is an error on every rank that talks to it, at once. A rank ends its work with a barrier
/// before it destroys the transport: messages that nobody has received five seconds later are lost.
std::shared_ptr<Transport> connect_gloo(const GlooOptions& options);

}  // namespace paceline
