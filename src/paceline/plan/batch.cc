#include "paceline/plan/batch.h"

#include "paceline/base/error.h"

#include <string>
#include <vector>

namespace paceline {
namespace {

constexpr const char* global_key = "train.global_batch_size";
constexpr const char* micro_key = "train.micro_batch_size";
constexpr const char* accumulation_key = "train.gradient_accumulation_steps";

void at_least_one(const char* key, std::int64_t value) {
  if (value < 1) refuse("{} is {}: it must be at least 1", key, value);
}

/// The largest divisor of `value` that is at most `limit`.
std::int64_t largest_divisor(std::int64_t value, std::int64_t limit) {
  std::int64_t divisor = std::min(value, limit);
  while (value % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

BatchPlan resolve_batch(std::optional<std::int64_t> global, std::int64_t micro, std::optional<std::int64_t> accumulation,
                        std::int64_t dp) {
  at_least_one(micro_key, micro);
  at_least_one("parallel.dp", dp);
  if (global) at_least_one(global_key, *global);
  if (accumulation) at_least_one(accumulation_key, *accumulation);
  if (!global) {
    const std::int64_t passes = accumulation.value_or(1);
    return {.global = micro * passes * dp, .micro = micro, .accumulation = passes, .dp = dp};
  }
  const std::int64_t pass = micro * dp;
  if (!accumulation) {
    if (*global % pass == 0) return {.global = *global, .micro = micro, .accumulation = *global / pass, .dp = dp};
    if (*global % dp != 0) {
      refuse("{} {} does not divide over dp {}: {} x {} (micro-batch x dp) = {} must divide it; dp {} or {} {} would work",
             global_key, *global, dp, micro, dp, pass, largest_divisor(*global, dp), global_key, (*global / pass + 1) * pass);
    }
    const std::int64_t works = largest_divisor(*global / dp, micro);
    if (*global < pass) {
      refuse("{} {} is less than {} x {} (micro-batch x dp) = {}: needs at least {}, or micro-batch {}", global_key, *global,
             micro, dp, pass, pass, works);
    }
    refuse("{} {} is no multiple of {} x {} (micro-batch x dp) = {}: {} or {} would work, or micro-batch {}", global_key,
           *global, micro, dp, pass, *global / pass * pass, (*global / pass + 1) * pass, works);
  }
  const std::int64_t product = pass * *accumulation;
  if (product != *global) {
    std::vector<std::string> works;
    if (*global % pass == 0) works.push_back(fmt::format("accumulation {}", *global / pass));
    if (*global % (micro * *accumulation) == 0) works.push_back(fmt::format("dp {}", *global / (micro * *accumulation)));
    if (*global % (*accumulation * dp) == 0) works.push_back(fmt::format("micro-batch {}", *global / (*accumulation * dp)));
    works.push_back(fmt::format("global batch {}", product));
    refuse("micro-batch x accumulation x dp is {} x {} x {} = {}, not {} ({}): {} would work", micro, *accumulation, dp, product,
           *global, global_key, fmt::join(works, " or "));
  }
  return {.global = *global, .micro = micro, .accumulation = *accumulation, .dp = dp};
}

}  // namespace paceline
