#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// `paceline bench machine`: measures products, attention, element-wise operations, memory, messages and disk of this
/// machine and writes the profile that `paceline plan` reads.
int run_bench_machine(const BenchMachineRequest& request);

}  // namespace paceline
