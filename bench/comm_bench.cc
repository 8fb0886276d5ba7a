// Time of an all-reduce by size, algorithm and backend:
//     comm_bench thread|gloo|shared RANKS
// The ranks of the last two are processes of this machine.

#include "paceline/comm/collectives.h"
#include "paceline/comm/communicator_set.h"
#include "paceline/comm/gloo_communicator.h"
#include "paceline/comm/network_address.h"
#include "paceline/comm/shared_memory_transport.h"
#include "paceline/comm/thread_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <vector>

namespace paceline {
namespace {

using Algorithm = void (*)(const Collective&, void*, std::int64_t, at::ScalarType, ReduceOp);

/// Median microseconds of one call, from one rank's view.
double median_time(Transport& transport, Algorithm algorithm, std::int64_t count) {
  std::vector<int> ranks(transport.size());
  for (int rank = 0; rank < transport.size(); ++rank) ranks[rank] = rank;
  const int repeats = count <= 65536 ? 101 : count <= 1 << 20 ? 31 : 7;
  std::vector<float> data(count, 1.0f);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    barrier_dissemination({transport, ranks, transport.rank(), 1});
    const auto begin = std::chrono::steady_clock::now();
    algorithm({transport, ranks, transport.rank(), 2}, data.data(), count, at::ScalarType::Float, ReduceOp::sum);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    std::fill(data.begin(), data.end(), 1.0f);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

void measure(Transport& transport, const char* backend) {
  const bool prints = transport.rank() == 0;
  if (prints) std::printf("%-7s %5s %10s %14s %14s\n", "backend", "ranks", "bytes", "doubling us", "ring us");
  for (const int kib : {0, 1, 16, 64, 256, 512, 1024, 4096, 16384, 65536}) {
    const std::int64_t bytes = kib == 0 ? 4 : kib * 1024;
    const double doubling = median_time(transport, all_reduce_doubling, bytes / 4);
    const double ring = median_time(transport, all_reduce_ring, bytes / 4);
    if (prints) {
      std::printf("%-7s %5d %10ld %14.1f %14.1f\n", backend, transport.size(), static_cast<long>(bytes), doubling,
                  ring);
      std::fflush(stdout);
    }
  }
}

void run_process_rank(const char* backend, int rank, int ranks, int port) {
  auto transport = connect_gloo({.rank = rank, .world_size = ranks, .master_port = port, .run_id = "comm_bench"});
  if (std::strcmp(backend, "shared") == 0) transport = share_memory(transport, std::chrono::minutes(1));
  measure(*transport, backend);
}

int run(int count, char** arguments) {
  if (count == 5) {
    run_process_rank(arguments[1], std::atoi(arguments[3]), std::atoi(arguments[2]), std::atoi(arguments[4]));
    return 0;
  }
  if (count != 3) {
    std::fprintf(stderr, "usage: comm_bench thread|gloo|shared RANKS\n");
    return 2;
  }
  const int ranks = std::atoi(arguments[2]);
  if (std::strcmp(arguments[1], "thread") == 0) {
    run_ranks(ranks, [](int rank, Hub& hub) { measure(*hub.transport(rank), "thread"); });
    return 0;
  }
  int port = 0;
  { port = listen_as_master("127.0.0.1", 0).port(); }
  std::vector<pid_t> processes(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string rank_text = std::to_string(rank);
    const std::string port_text = std::to_string(port);
    const char* child[] = {arguments[0], arguments[1], arguments[2], rank_text.c_str(), port_text.c_str(), nullptr};
    if (posix_spawn(&processes[rank], "/proc/self/exe", nullptr, nullptr, const_cast<char**>(child), environ) != 0) {
      return 1;
    }
  }
  int result = 0;
  for (const pid_t process : processes) {
    int status = 0;
    waitpid(process, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}

}  // namespace
}  // namespace paceline

int main(int count, char** arguments) {
  try {
    return paceline::run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_bench: %s\n", error.what());
    return 1;
  }
}
