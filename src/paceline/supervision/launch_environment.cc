#include "paceline/supervision/launch_environment.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/supervision/node_list.h"

namespace paceline {

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string LaunchEnvironment::text() const {
  const char* const variables = source == "torchrun"   ? "RANK, WORLD_SIZE"
                                : source == "slurm"    ? "SLURM_*"
                                : source == "open_mpi" ? "OMPI_*"
                                : source == "pmi"      ? "PMI_*"
                                                       : nullptr;
  const std::string ranks = fmt::format("{} rank{}", world_size, world_size == 1 ? "" : "s");
  return variables ? fmt::format("{}, from {}", ranks, variables) : ranks;
}

namespace {

/// One launcher's variables. The first name of `size` that is set counts.
struct Launcher {
  const char* source;
  const char* rank;
  std::vector<const char*> size;
  const char* local_rank;
  const char* local_size;
};

const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all = {
      {"torchrun", "RANK", {"WORLD_SIZE"}, "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
      {"slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, "SLURM_LOCALID", nullptr},
      {"open_mpi", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"pmi", "PMI_RANK", {"PMI_SIZE"}, "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
  };
  return all;
}

class LaunchReader {
 public:
  explicit LaunchReader(const EnvironmentVariable& variable) : variable_(variable) {}

  LaunchEnvironment read() {
    const auto chosen = choose();
    if (!chosen) return {};
    const Launcher& launcher = *chosen;
    LaunchEnvironment result;
    result.source = launcher.source;
    result.rank = required(launcher, launcher.rank);
    result.world_size = required(launcher, size_name(launcher));
    if (result.world_size < 1) refuse("{}={} must be at least 1", size_name(launcher), result.world_size);
    if (result.rank >= result.world_size) {
      refuse("{}={} must be less than {}={}", launcher.rank, result.rank, size_name(launcher), result.world_size);
    }
    result.master_port = port_from("MASTER_PORT").value_or(0);
    result.master_addr = get("MASTER_ADDR").value_or("");
    if (result.source == "torchrun") {
      complete_torchrun(launcher, result);
    } else if (result.source == "slurm") {
      complete_slurm(launcher, result);
    } else {
      complete_mpi(launcher, result);
    }
    if (result.local_world_size < 1 || result.local_world_size > result.world_size) {
      refuse("{} says {} ranks on this machine, but {}={}", launcher.local_size ? launcher.local_size : "Slurm",
             result.local_world_size, size_name(launcher), result.world_size);
    }
    if (result.local_rank >= result.local_world_size) {
      refuse("{}={} must be less than the {} ranks of this machine ({})", launcher.local_rank, result.local_rank,
             result.local_world_size, launcher.local_size ? launcher.local_size : "from Slurm's variables");
    }
    return result;
  }

 private:
  std::optional<std::string> get(const char* name) const {
    auto value = variable_(name);
    if (value && value->empty()) return std::nullopt;
    return value;
  }

  std::optional<std::int64_t> number(const char* name, std::int64_t most = 1 << 24) const {
    const auto text = get(name);
    if (!text) return std::nullopt;
    std::int64_t value = -1;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value < 0 || value > most) {
      refuse("{}={} is not a number from 0 to {}", name, *text, most);
    }
    return value;
  }

  std::optional<int> port_from(const char* name) const {
    const auto port = number(name, 65535);
    if (!port) return std::nullopt;
    return static_cast<int>(*port);
  }

  const char* size_name(const Launcher& launcher) const {
    for (const char* name : launcher.size) {
      if (get(name)) return name;
    }
    return launcher.size.back();
  }

  bool has_rank(const Launcher& launcher) const { return get(launcher.rank).has_value(); }
  bool has_size(const Launcher& launcher) const { return get(size_name(launcher)).has_value(); }

  int required(const Launcher& launcher, const char* name) const {
    const auto value = number(name);
    if (value) return static_cast<int>(*value);
    std::string there;
    for (const char* other : {launcher.rank, size_name(launcher), launcher.local_rank}) {
      if (get(other)) there += fmt::format("{}{}={}", there.empty() ? "" : ", ", other, *get(other));
    }
    refuse("{} is not set, but {} is: set all of the launcher's variables or none", name, there);
  }

  bool is_slurm_step() const {
    for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"}) {
      if (get(name)) return true;
    }
    return false;
  }

  /// Slurm's variables in an allocation's shell (a size without a rank) or a batch script (rank 0 and perhaps a size,
  /// but no step): they describe the job, not this process.
  bool only_describes_a_job(const Launcher& launcher) const {
    if (std::string_view(launcher.source) != "slurm" || is_slurm_step()) return false;
    return !has_rank(launcher) || get(launcher.rank) == "0";
  }

  /// The launcher that started this process, or none.
  std::optional<Launcher> choose() const {
    const auto named = get("PACELINE_LAUNCHER");
    std::vector<Launcher> present;
    for (const Launcher& launcher : launchers()) {
      if (named && *named == launcher.source) return launcher;
      if (has_rank(launcher) || has_size(launcher)) present.push_back(launcher);
    }
    if (named && *named == "none") return std::nullopt;
    if (named) refuse("PACELINE_LAUNCHER={} is not one of torchrun, slurm, open_mpi, pmi, none", *named);

    // torchrun and the local launcher start their ranks inside whatever started them.
    if (!present.empty() && std::string_view(present.front().source) == "torchrun" &&
        (get("TORCHELASTIC_RUN_ID") || get("PACELINE_CONTROL"))) {
      return present.front();
    }
    std::vector<Launcher> started;
    std::optional<Launcher> job;
    for (const Launcher& launcher : present) {
      if (only_describes_a_job(launcher)) {
        job = launcher;
      } else {
        started.push_back(launcher);
      }
    }
    // Without another launcher, rank 0 and a size may also be a step of a Slurm that names none.
    if (started.empty() && job && has_rank(*job) && has_size(*job)) return job;
    if (started.empty()) return std::nullopt;
    for (const Launcher& other : started) refuse_contradiction(started.front(), other);
    return started.front();
  }

  void refuse_contradiction(const Launcher& first, const Launcher& other) const {
    const auto compare = [&](const char* a, const char* b) {
      const auto value_a = number(a), value_b = number(b);
      if (value_a && value_b && *value_a != *value_b) {
        refuse("{}={} contradicts {}={}: two launchers at once; unset the variables of one, or name the one that "
               "counts with PACELINE_LAUNCHER={} or PACELINE_LAUNCHER={}",
               a, *value_a, b, *value_b, first.source, other.source);
      }
    };
    compare(first.rank, other.rank);
    compare(size_name(first), size_name(other));
  }

  static bool is_loopback(const std::string& address) {
    return address == "localhost" || address == "::1" || address.starts_with("127.");
  }

  void complete_torchrun(const Launcher& launcher, LaunchEnvironment& result) const {
    if (result.world_size == 1) {
      result.local_rank = static_cast<int>(number(launcher.local_rank).value_or(0));
    } else {
      result.local_rank = required(launcher, launcher.local_rank);
      if (result.master_addr.empty()) refuse_missing_master(launcher, "MASTER_ADDR");
      if (result.master_port == 0) refuse_missing_master(launcher, "MASTER_PORT");
    }
    // Launchers by hand often leave it out: then all ranks are here, or as many as this rank can know of.
    const bool all_here = result.world_size == 1 || is_loopback(result.master_addr);
    const int known = all_here ? result.world_size : result.local_rank + 1;
    result.local_world_size = static_cast<int>(number(launcher.local_size).value_or(known));
    if (const auto id = get("PACELINE_RUN_ID")) {
      result.run_id = *id;
      result.store_socket = static_cast<int>(number("PACELINE_STORE_SOCKET").value_or(-1));
    } else if (const auto elastic = get("TORCHELASTIC_RUN_ID")) {
      result.run_id = fmt::format("torchrun-{}.{}", *elastic, get("TORCHELASTIC_RESTART_COUNT").value_or("0"));
    }
    result.launcher_hosts_store = get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  }

  [[noreturn]] void refuse_missing_master(const Launcher& launcher, const char* name) const {
    refuse("{} is not set, but {}={} and {}={} are: set it to the {} of rank 0", name, launcher.rank,
        *get(launcher.rank),
           size_name(launcher), *get(size_name(launcher)),
           std::string_view(name) == "MASTER_ADDR" ? "address" : "port");
  }

  /// "4(x2),3" of SLURM_*TASKS_PER_NODE: the number for node `node`.
  std::optional<int> tasks_on_node(const char* name, std::int64_t node) const {
    const auto text = get(name);
    if (!text) return std::nullopt;
    std::string_view rest = *text;
    const auto read_number = [&] {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
      if (error != std::errc() || value < 1 || value > 1 << 24) refuse("cannot read {}={}", name, *text);
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      return value;
    };
    const auto take = [&](std::string_view expected) {
      if (!rest.starts_with(expected)) return false;
      rest.remove_prefix(expected.size());
      return true;
    };
    while (true) {
      const std::int64_t tasks = read_number();
      std::int64_t nodes = 1;
      if (take("(x")) {
        nodes = read_number();
        if (!take(")")) refuse("cannot read {}={}", name, *text);
      }
      if (node < nodes) return static_cast<int>(tasks);
      node -= nodes;
      if (!take(",")) return std::nullopt;
    }
  }

  static int port_of_job(std::uint64_t job) { return 15000 + static_cast<int>(job % 15000); }

  void complete_slurm(const Launcher& launcher, LaunchEnvironment& result) const {
    const char* const list_name = get("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST"
                                  : get("SLURM_JOB_NODELIST") ? "SLURM_JOB_NODELIST"
                                                              : "SLURM_NODELIST";
    const auto list = get(list_name);
    std::int64_t hosts = number("SLURM_STEP_NUM_NODES").value_or(number("SLURM_NNODES").value_or(0));
    if (list && (result.master_addr.empty() || hosts == 0)) {
      if (result.master_addr.empty()) result.master_addr = first_host(*list);
      if (hosts == 0) hosts = host_count(*list);
    }
    if (hosts == 0 && result.world_size == 1) hosts = 1;
    if (result.master_addr.empty()) {
      if (hosts != 1) {
        refuse("{} ranks from Slurm, but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set: set MASTER_ADDR to "
               "the host of rank 0",
               result.world_size);
      }
      result.master_addr = "127.0.0.1";
    }
    result.local_rank = result.world_size == 1 ? static_cast<int>(number(launcher.local_rank).value_or(0))
                                               : required(launcher, launcher.local_rank);
    const std::int64_t node = number("SLURM_NODEID").value_or(0);
    auto local = tasks_on_node("SLURM_STEP_TASKS_PER_NODE", node);
    if (!local) local = tasks_on_node("SLURM_TASKS_PER_NODE", node);
    if (!local && hosts == 1) local = result.world_size;
    if (!local) local = tasks_on_node("SLURM_NTASKS_PER_NODE", 0);
    if (!local && hosts > 0) local = static_cast<int>((result.world_size + hosts - 1) / hosts);
    // The list may be the whole job's, of which this step has only a part.
    result.local_world_size = std::max(std::min(local.value_or(1), result.world_size), result.local_rank + 1);
    constexpr std::int64_t any = std::int64_t{1} << 40;
    if (const auto job = number("SLURM_JOB_ID", any)) {
      const std::int64_t step = number(get("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID", any).value_or(0);
      result.run_id = fmt::format("slurm-{}.{}", *job, step);
      // Steps of one job may run side by side; 61 keeps them and neighbouring jobs apart.
      if (result.master_port == 0) result.master_port = port_of_job(static_cast<std::uint64_t>(*job + 61 * step));
    }
  }

  void complete_mpi(const Launcher& launcher, LaunchEnvironment& result) const {
    const bool alone = result.world_size == 1;
    result.local_rank = alone ? static_cast<int>(number(launcher.local_rank).value_or(0))
                              : static_cast<int>(number(launcher.local_rank).value_or(-1));
    result.local_world_size = static_cast<int>(number(launcher.local_size).value_or(alone ? 1 : 0));
    if (result.local_rank < 0) required(launcher, launcher.local_rank);
    if (result.local_world_size == 0) required(launcher, launcher.local_size);
    if (result.master_addr.empty()) {
      if (result.local_world_size != result.world_size) {
        refuse("{} of {} ranks are on this machine, and MASTER_ADDR is not set: set it to the host of rank 0 "
               "(mpirun -x MASTER_ADDR=...)",
               result.local_world_size, result.world_size);
      }
      result.master_addr = "127.0.0.1";
    }
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
      if (const auto job = get(name)) {
        result.run_id = fmt::format("{}-{}", result.source, *job);
        if (result.master_port == 0) result.master_port = port_of_job(XXH64(job->data(), job->size(), 0));
        break;
      }
    }
  }

  const EnvironmentVariable& variable_;
};

}  // namespace

LaunchEnvironment detect_launch(const EnvironmentVariable& variable) { return LaunchReader(variable).read(); }

}  // namespace paceline
