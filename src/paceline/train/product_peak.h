#pragma once

#include "paceline/comm/communicator.h"

#include <ATen/core/Tensor.h>

namespace paceline {

/// Measured peak of matrix products of this process with its threads, in FLOP/s: the best of several products of
/// [2048, 1024] x [1024, 1024]. The base of MFU.
double measure_product_peak(at::ScalarType type, int repetitions = 8);

/// The peak of all ranks' cores together: on each machine as many ranks as its cores can carry measure at the same time,
/// the others wait. Collective; every rank gets the sum.
double measure_product_peak_of_ranks(Communicator& world, int local_rank, at::ScalarType type, int repetitions = 8);

}  // namespace paceline
