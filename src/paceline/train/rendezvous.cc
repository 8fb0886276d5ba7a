#include "paceline/train/rendezvous.h"

#include "paceline/base/error.h"
#include "paceline/comm/gloo_communicator.h"
#include "paceline/comm/thread_communicator.h"

#include <xxhash.h>

#include <cstdlib>

namespace paceline {
namespace {

/// What the ranks of one run have in common and those of another do not: the launcher's own id, and the settings.
std::string run_identity(const RunSettings& settings) {
  std::string id;
  for (const char* name : {"PACELINE_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"}) {
    if (const auto value = environment_variable(name)) id += *value + "/";
  }
  const std::string text = to_toml(settings);
  return id + fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

}  // namespace

std::shared_ptr<Transport> join_ranks(const LaunchEnvironment& launch, const RunSettings& settings) {
  if (launch.world_size == 1) return Hub(1).transport(0);
  GlooOptions options{.rank = launch.rank,
                      .world_size = launch.world_size,
                      .master_address = launch.master_addr,
                      .master_port = launch.master_port,
                      .run_id = run_identity(settings),
                      .connect_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(settings.supervision.connect_timeout_s * 1e3)),
                      .timeout = std::chrono::milliseconds(static_cast<std::int64_t>(settings.supervision.hang_timeout_s * 4e3))};
  if (const auto socket = environment_variable("PACELINE_STORE_SOCKET"); socket && launch.rank == 0) {
    options.listening_descriptor = std::atoi(socket->c_str());
  }
  options.launcher_hosts_store = environment_variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  return connect_gloo(options);
}

}  // namespace paceline
