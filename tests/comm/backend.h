#pragma once

#include "paceline/comm/gloo_communicator.h"
#include "paceline/comm/network_address.h"
#include "paceline/comm/shared_memory_transport.h"
#include "paceline/comm/thread_communicator.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

/// The backends that the tests of communicators run on.
enum class Backend { thread, gloo, shared_memory };

inline std::vector<Backend> all_backends() { return {Backend::thread, Backend::gloo, Backend::shared_memory}; }
inline std::string backend_name(Backend backend) {
  return backend == Backend::thread ? "Thread" : backend == Backend::gloo ? "Gloo" : "SharedMemory";
}

/// Runs the body on `ranks` threads, each with its rank's transport; the first exception is rethrown.
inline void run_backend(Backend backend, int ranks,
                        const std::function<void(int rank, std::shared_ptr<Transport>)>& body) {
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  run_ranks(ranks, [&](int rank, Hub& hub) {
    if (backend == Backend::thread) return body(rank, hub.transport(rank));
    auto transport = connect_gloo({.rank = rank,
                                   .world_size = ranks,
                                   .master_port = port,
                                   .listening_descriptor = rank == 0 ? socket.release() : -1,
                                   .run_id = "test",
                                   .timeout = std::chrono::seconds(60)});
    if (backend == Backend::shared_memory) transport = share_memory(transport, std::chrono::seconds(60));
    body(rank, std::move(transport));
  });
}

}  // namespace paceline
