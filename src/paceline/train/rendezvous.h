#pragma once

#include "paceline/comm/transport.h"
#include "paceline/config/run_settings.h"
#include "paceline/supervision/launch_environment.h"

#include <memory>
#include <string>

namespace paceline {

/// Joins the ranks of a run: over shared memory on one machine and Gloo between machines, or alone for one rank. Ranks started with other settings are of
/// another run and never join.
std::shared_ptr<Transport> join_ranks(const LaunchEnvironment& launch, const RunSettings& settings);

}  // namespace paceline
