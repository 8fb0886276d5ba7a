#pragma once

#include <cstddef>
#include <functional>

namespace paceline {

/// Threads to work with unless told otherwise: one a core.
int default_workers();

/// Calls `work(worker, index)` once for each index below `count` on `workers` threads, indices in rising order. After
/// an exception no further index is begun and the exception of the lowest index is thrown.
void parallel_for(std::size_t count, int workers, const std::function<void(int worker, std::size_t index)>& work);

}  // namespace paceline
