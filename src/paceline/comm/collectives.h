#pragma once

#include "paceline/comm/communicator.h"
#include "paceline/comm/transport.h"

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline {

/// One collective call: the ranks that take part, this rank's place among them, and a tag of its own.
struct Collective {
  Transport& transport;
  const std::vector<int>& world_ranks;
  int rank;
  std::uint32_t tag;

  int size() const { return static_cast<int>(world_ranks.size()); }
};

/// Element types that can be reduced: float64, float32, int64, int32, uint8. Throws std::logic_error on any other.
std::size_t reducible_bytes(at::ScalarType type);

/// data[i] = data[i] op other[i]. A floating-point maximum is NaN where either is.
void reduce_into(void* data, const void* other, std::int64_t count, at::ScalarType type, ReduceOp op);

/// In log2(ranks) exchanges of the whole, each with the rank whose number differs in one bit; the ranks beyond the last
/// power of two hand theirs to a partner before and receive the result after. For small messages. Both sides of an
/// exchange add the same two numbers, so all ranks get the same bits. (R. Thakur, R. Rabenseifner, W. Gropp:
/// Optimization of Collective Communication Operations in MPICH, 2005.)
void all_reduce_doubling(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op);

/// Reduce-scatter and all-gather around a ring: every rank sends 2 (n - 1) / n of the data. For large messages. Each
/// part is summed in ring order from one rank's on, so all ranks get the same bits. (P. Patarasuk, X. Yuan: Bandwidth
/// Optimal All-reduce Algorithms for Clusters of Workstations, 2009.)
void all_reduce_ring(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op);

/// From this size on the ring is faster (measured by bench/comm).
inline constexpr std::size_t ring_from_bytes = 256 * 1024;

void all_reduce_by_size(const Collective& call, void* data, std::int64_t count, at::ScalarType type, ReduceOp op);

/// `data` holds size() equal parts; leaves the reduction of part `rank` there, the others undefined.
void reduce_scatter_ring(const Collective& call, void* data, std::int64_t part, at::ScalarType type, ReduceOp op);

/// `data` holds size() parts of the given sizes, one after the other; part `rank` is filled in by the caller.
void all_gather_ring(const Collective& call, void* data, const std::vector<std::size_t>& part_bytes);

/// Along a binomial tree.
void broadcast_tree(const Collective& call, void* data, std::size_t bytes, int root);

/// In ceil(log2(ranks)) rounds; round k tells the rank 2^k further on. (D. Hensgen, R. Finkel, U. Manber: Two
/// Algorithms for Barrier Synchronization, 1988.)
void barrier_dissemination(const Collective& call);

}  // namespace paceline
