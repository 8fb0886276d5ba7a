#pragma once

#include "paceline/engine/requests.h"

namespace paceline {

/// `paceline bench train` in one rank's process: the real training step on random tokens. Rank 0 prints tokens/s of the
/// median step, model TFLOP/s, the product peak measured in the same process, MFU and the largest rank's peak resident
/// memory.
int run_bench_train(const BenchTrainRequest& request);

}  // namespace paceline
