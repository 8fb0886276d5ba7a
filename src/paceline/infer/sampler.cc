#include "paceline/infer/sampler.h"

#include "paceline/base/error.h"
#include "paceline/base/philox.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace paceline {

Sampler::Sampler(const SamplingOptions& options, std::vector<bool> allowed)
    : options_(options), allowed_(std::move(allowed)), key_(stream_key(options.seed, "sampling")) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    refuse("--temperature {}: 0 (the most likely token) or a positive number", options.temperature);
  }
  if (options.top_k < 0) refuse("--top-k {}: 0 (all tokens) or a positive number", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1)) refuse("--top-p {}: above 0 and at most 1", options.top_p);
}

std::int64_t Sampler::sample(const at::Tensor& logits, std::uint64_t index) const {
  const at::Tensor values = logits.to(at::kDouble).contiguous();
  const double* value = values.const_data_ptr<double>();
  std::vector<std::int64_t> candidates;
  for (std::int64_t id = 0; id < values.numel(); ++id) {
    if (!std::isfinite(value[id])) fail("the model's logits are not finite (token {}): its weights are broken", id);
    if (id < static_cast<std::int64_t>(allowed_.size()) && allowed_[id]) candidates.push_back(id);
  }
  PACELINE_CHECK(!candidates.empty());
  const auto more_likely = [value](std::int64_t a, std::int64_t b) { return value[a] != value[b] ? value[a] > value[b] : a < b; };
  if (options_.temperature == 0) return *std::min_element(candidates.begin(), candidates.end(), more_likely);

  auto kept = candidates.size();
  if (options_.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options_.top_k));
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(kept), candidates.end(), more_likely);
  candidates.resize(kept);
  std::vector<double> weights(kept);
  for (std::size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp((value[candidates[i]] - value[candidates[0]]) / options_.temperature);
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options_.top_p < 1) {
    double held = 0;
    std::size_t fewest = 0;
    while (fewest < kept && held < options_.top_p * total) held += weights[fewest++];
    kept = std::max<std::size_t>(fewest, 1);
    total = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  }
  double rest = random_uniform(key_, index) * total;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    if (rest < weights[i]) return candidates[i];
    rest -= weights[i];
  }
  return candidates[kept - 1];
}

}  // namespace paceline
