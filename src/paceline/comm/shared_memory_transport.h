#pragma once

#include "paceline/comm/transport.h"

#include <chrono>
#include <memory>

namespace paceline {

/// A transport that talks to the ranks of this machine through shared memory and to the others over `network`, for
/// ranks that are processes: a message takes one wake-up and no system call while both sides run, where a local
/// connection takes four wake-ups. Collective over all ranks. Where this machine's ranks cannot share memory, or there
/// is one only, `network` itself comes back.
///
/// Each ordered pair of ranks has a ring of 4 MiB; a send that finds it full takes in what arrives meanwhile, so that
/// crossing sends never block each other. `timeout` limits a single receive, and a send that nobody takes in. A local
/// rank whose process ends is an error within a second on every rank that waits for it.
std::shared_ptr<Transport> share_memory(std::shared_ptr<Transport> network, std::chrono::milliseconds timeout);

}  // namespace paceline
