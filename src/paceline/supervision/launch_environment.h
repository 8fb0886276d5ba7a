#pragma once

#include <functional>
#include <optional>
#include <string>

namespace paceline {

/// Reads one environment variable; empty values count as unset.
using EnvironmentVariable = std::function<std::optional<std::string>(const char*)>;

/// The process's own environment.
std::optional<std::string> environment_variable(const char* name);

/// This process's place among the processes that were started together.
struct LaunchEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        ///< among the ranks on this machine
  int local_world_size = 1;  ///< ranks on this machine
  std::string master_addr;   ///< where rank 0 listens; empty without a launcher
  int master_port = 0;       ///< 0: none
  std::string source = "none";  ///< "torchrun", "slurm", "open_mpi", "pmi" or "none"
  /// The same in all ranks of the run and, as far as the launcher numbers its runs, in no other; may be empty.
  std::string run_id;
  int store_socket = -1;  ///< local launcher, rank 0: a descriptor that listens on master_port already
  bool launcher_hosts_store = false;  ///< torchrun's agent answers at master_addr, not rank 0

  /// "2 ranks, from OMPI_*"
  std::string text() const;
};

/// Who started this process, in this order:
///   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, [LOCAL_WORLD_SIZE,] MASTER_ADDR, MASTER_PORT  (the local launcher's too)
///   slurm      SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST or
///              SLURM_JOB_NODELIST
///   open_mpi   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
///   pmi        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
/// MASTER_ADDR and MASTER_PORT, where set, win over what is derived: the first host of Slurm's node list, this machine
/// when all ranks are on it, and a port in 15000..29999 from the number of the job that all its ranks know.
///
/// Two launchers that disagree about rank or size are refused with both values, unless it is evident which one is the
/// inner: torchrun and the local launcher leave their marks, and the variables of a Slurm batch script (no step) give
/// way. PACELINE_LAUNCHER=<source> decides by hand. Incomplete sets, non-numbers and a rank beyond the size are
/// refused. In a batch script or an allocation's shell without a step, Slurm's variables alone start nothing: "none".
LaunchEnvironment detect_launch(const EnvironmentVariable& variable = environment_variable);

}  // namespace paceline
