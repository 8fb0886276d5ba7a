#include "fuzz_target.h"

#include "paceline/supervision/node_list.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  require(host_count(bytes) >= 1, "a list of no hosts");
  require(!first_host(bytes).empty(), "a host without a name");
}

std::vector<std::string> seeds() {
  return {"a[1,3-4]-[01-02],b", "foo-[10-20]-[01-02]", "node", "n[0-999999999999999][0-999999999999999]", "a[",
          std::string(200'000, '['), "a" + std::string(200'000, ',')};
}

}  // namespace paceline
