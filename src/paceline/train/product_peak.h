#pragma once

#include <ATen/core/Tensor.h>

namespace paceline {

/// Measured peak of matrix products of this process with its threads, in FLOP/s: the best of several products of
/// [2048, 1024] x [1024, 1024]. The base of MFU.
double measure_product_peak(at::ScalarType type, int repetitions = 8);

}  // namespace paceline
