#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace paceline {

/// Slurm's compressed lists of host names: "a[1,3-4]-[01-02],b". Ranges keep their leading zeros; the last bracket of a
/// name runs fastest. A list that does not parse is refused with its text and the way to set MASTER_ADDR by hand.

/// The first host: "foo-[10-20]-[01-02]" -> "foo-10-01".
std::string first_host(std::string_view node_list);

/// The number of hosts, duplicates included: "foo-[10-20]-[01-02]" -> 22.
std::int64_t host_count(std::string_view node_list);

}  // namespace paceline
