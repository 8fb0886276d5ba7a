#include "paceline/supervision/usable_cores.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

#include "paceline/base/error.h"

namespace paceline {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::optional<double> read_quota(const std::filesystem::path& folder, bool unified) {
  double quota = -1, period = -1;
  if (unified) {
    std::ifstream(folder / "cpu.max") >> quota >> period;  // "max 100000" leaves both unset
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

/// The path below a mount point of the control group that this process is in. Inside a container the mount shows only a
/// part of the tree: `mount_root` is cut off, and a path outside of it is the mount point itself.
std::filesystem::path below_mount(const std::string& group, const std::string& mount_root) {
  if (mount_root == "/") return std::filesystem::path(group).relative_path();
  if (group == mount_root) return {};
  if (group.starts_with(mount_root + "/")) return group.substr(mount_root.size() + 1);
  return {};
}

int affinity_cores() {
  for (int size = 1024; size <= 1 << 20; size *= 4) {
    cpu_set_t* const set = CPU_ALLOC(size);
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return std::max(1, count);
  }
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

std::optional<double> cgroup_cpu_limit(const std::filesystem::path& root) {
  std::string unified_group, cpu_group;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b" or "0::/a/b"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) unified_group = group;
    if (std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end()) cpu_group = group;
  }

  std::optional<double> limit;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {  // id parent dev root point options ... - type source options
    const auto fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    const auto super_options = split(dash[3], ',');
    const bool unified = type == "cgroup2";
    const bool cpu = type == "cgroup" && std::find(super_options.begin(), super_options.end(),
        "cpu") != super_options.end();
    const std::string& group = unified ? unified_group : cpu_group;
    if ((!unified && !cpu) || group.empty()) continue;
    const auto mount_point = root / std::filesystem::path(fields[4]).relative_path();
    auto path = below_mount(group, fields[3]);
    while (true) {
      if (const auto quota = read_quota(path.empty() ? mount_point : mount_point / path, unified)) {
        limit = limit ? std::min(*limit, *quota) : *quota;
      }
      if (path.empty()) break;
      path = path.parent_path();
    }
  }
  return limit;
}

int usable_cores() {
  const int cores = affinity_cores();
  const auto limit = cgroup_cpu_limit();
  return limit ? std::max(1, std::min(cores, static_cast<int>(std::min(*limit, 1e6)))) : cores;
}

ThreadChoice threads_per_rank(int cores, int local_ranks, const EnvironmentVariable& variable) {
  PACELINE_CHECK(cores >= 1 && local_ranks >= 1);
  const auto count_of = [](const char* name, const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    // "4,2" gives the threads of nested regions; the outermost counts.
    if (error != std::errc() || value < 1 || (end != text.data() + text.size() && *end != ',')) {
      refuse("{}={} is not a positive number of threads", name, text);
    }
    return value;
  };
  const auto set = [&](const char* name) {
    auto value = variable(name);
    return value && !value->empty() ? value : std::nullopt;
  };
  if (const auto user = set("OMP_NUM_THREADS")) {
    const int threads = count_of("OMP_NUM_THREADS", *user);
    const int fair = std::max(1, cores / local_ranks);
    // torchrun sets 1 where the user sets nothing, which cannot be told from the user's own 1.
    if (threads == 1 && fair > 1 && set("TORCHELASTIC_RUN_ID")) {
      return {threads, fmt::format("from OMP_NUM_THREADS, torchrun's default; OMP_NUM_THREADS={} would use all cores",
          fair)};
    }
    return {threads, "from OMP_NUM_THREADS"};
  }
  if (const auto slurm = set("SLURM_CPUS_PER_TASK")) {
    return {std::min(cores, count_of("SLURM_CPUS_PER_TASK", *slurm)),
            fmt::format("from SLURM_CPUS_PER_TASK, {} usable core{}", cores, cores == 1 ? "" : "s")};
  }
  return {std::max(1, cores / local_ranks), fmt::format("{} usable core{} / {} local rank{}", cores, cores == 1 ? ""
      : "s",
                                                        local_ranks, local_ranks == 1 ? "" : "s")};
}

}  // namespace paceline
