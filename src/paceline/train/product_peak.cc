#include "paceline/train/product_peak.h"

#include "paceline/supervision/usable_cores.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace paceline {

double measure_product_peak(at::ScalarType type, int repetitions) {
  constexpr std::int64_t rows = 2048, inner = 1024, columns = 1024;
  const at::TensorOptions options = at::TensorOptions().dtype(type);
  at::Tensor a = at::empty({rows, inner}, options).fill_(0.5), b = at::empty({inner, columns}, options).fill_(0.25);
  at::Tensor c = at::empty({rows, columns}, options);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(c, a, b);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * rows * inner * columns / best;
}

double measure_product_peak_of_ranks(Communicator& world, int local_rank, at::ScalarType type, int repetitions) {
  const bool measures = local_rank < std::max(1, usable_cores() / at::get_num_threads());
  at::Tensor peak = at::zeros({1}, at::kDouble);
  world.barrier();
  if (measures) peak.mutable_data_ptr<double>()[0] = measure_product_peak(type, repetitions);
  if (world.size() > 1) world.all_reduce(peak, ReduceOp::sum);
  return peak.const_data_ptr<double>()[0];
}

}  // namespace paceline
