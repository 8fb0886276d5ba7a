#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "paceline/supervision/launch_environment.h"

namespace paceline {

/// CPUs that the control groups of this process grant (v2 `cpu.max`, v1 `cpu.cfs_quota_us` / `cpu.cfs_period_us`, the
/// smallest on the way to the root); nothing where there is no limit. Files are read below `root`.
std::optional<double> cgroup_cpu_limit(const std::filesystem::path& root = "/");

/// Cores that this process may use: its affinity mask, cut to the whole CPUs of the control group's limit; at least 1.
int usable_cores();

struct ThreadChoice {
  int threads = 1;
  std::string reason;  ///< for the banner: "2 usable cores / 1 local rank"
};

/// Threads of each rank: the user's OMP_NUM_THREADS if set, else max(1, cores / local ranks), where Slurm's
/// SLURM_CPUS_PER_TASK bounds the cores of one rank directly. Refuses an OMP_NUM_THREADS that is no positive number.
ThreadChoice threads_per_rank(int cores, int local_ranks, const EnvironmentVariable& variable = environment_variable);

}  // namespace paceline
