#include "paceline/train/rendezvous.h"

#include "paceline/base/error.h"
#include "paceline/comm/gloo_communicator.h"
#include "paceline/comm/shared_memory_transport.h"
#include "paceline/comm/thread_communicator.h"

#include <xxhash.h>

namespace paceline {
namespace {

/// What the ranks of one run have in common and those of another do not: the launcher's own id, and the settings.
std::string run_identity(const LaunchEnvironment& launch, const RunSettings& settings) {
  const std::string text = to_toml(settings);
  return fmt::format("{}/{:016x}", launch.run_id, XXH3_64bits(text.data(), text.size()));
}

}  // namespace

std::shared_ptr<Transport> join_ranks(const LaunchEnvironment& launch, const RunSettings& settings) {
  if (launch.world_size == 1) return Hub(1).transport(0);
  const auto milliseconds = [](double seconds) { return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3)); };
  const GlooOptions options{.rank = launch.rank,
                            .world_size = launch.world_size,
                            .master_address = launch.master_addr,
                            .master_port = launch.master_port,
                            .listening_descriptor = launch.store_socket,
                            .launcher_hosts_store = launch.launcher_hosts_store,
                            .run_id = run_identity(launch, settings),
                            .connect_timeout = milliseconds(settings.supervision.connect_timeout_s),
                            // Supervision names a rank that hangs; the transport's own limit only backs it up.
                            .timeout = milliseconds(4 * settings.supervision.hang_timeout_s)};
  return share_memory(connect_gloo(options), options.timeout);
}

}  // namespace paceline
