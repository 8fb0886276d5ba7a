#pragma once

#include <cstdint>
#include <optional>

namespace paceline {

/// How the samples of a step fall on ranks: global = micro x accumulation x dp, in sequences.
struct BatchPlan {
  std::int64_t global = 1;
  std::int64_t micro = 1;         ///< sequences a rank and pass
  std::int64_t accumulation = 1;  ///< passes (micro-batches) a rank and step
  std::int64_t dp = 1;
  bool operator==(const BatchPlan&) const = default;
};

/// Fills in what is left out: without `global` it is the product, without `accumulation` it is global / (micro x dp),
/// without both accumulation is 1. Refuses sizes below 1 and products that do not close, with the product written out
/// and what would work.
BatchPlan resolve_batch(std::optional<std::int64_t> global, std::int64_t micro, std::optional<std::int64_t> accumulation,
                        std::int64_t dp);

}  // namespace paceline
