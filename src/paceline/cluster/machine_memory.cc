#include "paceline/cluster/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <unistd.h>

namespace paceline {

std::int64_t usable_memory_bytes(const std::string& root) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGE_SIZE);
  std::int64_t bytes = pages > 0 && page > 0 ? static_cast<std::int64_t>(pages) * page : 0;
  // The group of this process, then its parents: "0::/a/b" in /proc/self/cgroup.
  std::string group;
  std::ifstream groups(root + "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  for (;;) {
    std::ifstream file(root + "sys/fs/cgroup" + group + "/memory.max");
    std::int64_t limit = 0;
    if (file >> limit && limit > 0) bytes = bytes > 0 ? std::min(bytes, limit) : limit;  // "max" is no number
    const std::size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return bytes;
    group.resize(slash);
  }
}

}  // namespace paceline
