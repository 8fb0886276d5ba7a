#include "paceline/data/kneser_ney.h"

#include <algorithm>
#include <cmath>

#include "paceline/base/error.h"

namespace paceline {
namespace {

std::uint64_t pair_key(std::int32_t context, std::int32_t token) {
  return (std::uint64_t{static_cast<std::uint32_t>(context)} << 32) | static_cast<std::uint32_t>(token);
}

/// Numbers of things that were counted once, twice, three and four times.
using CountsOfCounts = std::array<double, 4>;

void note_count(CountsOfCounts& counts, std::uint32_t count) {
  if (count >= 1 && count <= 4) ++counts[count - 1];
}

std::array<double, 3> discounts(const CountsOfCounts& n) {
  const double y = n[0] > 0 ? n[0] / (n[0] + 2 * n[1]) : 0.5;
  if (std::any_of(n.begin(), n.end(), [](double count) { return count == 0; })) return {y, y, y};
  std::array<double, 3> result{};
  for (int k = 1; k <= 3; ++k) {
    result[k - 1] = std::clamp(k - (k + 1) * y * n[k] / n[k - 1], 0.0, static_cast<double>(k));
  }
  return result;
}

double discount_of(const std::array<double, 3>& discounts, std::uint32_t count) {
  return count == 0 ? 0.0 : discounts[std::min<std::uint32_t>(count, 3) - 1];
}

}  // namespace

KneserNeyBigram::KneserNeyBigram(std::span<const std::int32_t> stream, std::int64_t vocabulary_size)
    : contexts_(static_cast<std::size_t>(vocabulary_size)), lower_(static_cast<std::size_t>(vocabulary_size)) {
  if (stream.size() < 2) fail("a bigram model needs at least 2 tokens, not {}", stream.size());
  for (const std::int32_t token : stream) PACELINE_CHECK(token >= 0 && token < vocabulary_size);
  for (std::size_t i = 1; i < stream.size(); ++i) ++pairs_[pair_key(stream[i - 1], stream[i])];

  CountsOfCounts pair_counts{};
  std::vector<std::uint32_t> predecessors(lower_.size());
  for (const auto& [pair, count] : pairs_) {
    note_count(pair_counts, count);
    ++predecessors[pair & 0xFFFFFFFFU];
  }
  CountsOfCounts lower_counts{};
  for (const std::uint32_t count : predecessors) note_count(lower_counts, count);
  pair_discounts_ = discounts(pair_counts);
  lower_discounts_ = discounts(lower_counts);

  std::vector<std::array<std::int64_t, 3>> followers(contexts_.size());
  for (const auto& [pair, count] : pairs_) {
    contexts_[pair >> 32].count += count;
    ++followers[pair >> 32][std::min<std::uint32_t>(count, 3) - 1];
  }
  for (std::size_t u = 0; u < contexts_.size(); ++u) {
    double discounted = 0;
    for (std::size_t k = 0; k < 3; ++k) discounted += pair_discounts_[k] * static_cast<double>(followers[u][k]);
    contexts_[u].back_off = contexts_[u].count > 0 ? discounted / contexts_[u].count : 1.0;
  }

  const auto kinds = static_cast<double>(pairs_.size());
  double discounted = 0;
  for (const std::uint32_t count : predecessors) discounted += discount_of(lower_discounts_, count);
  for (std::size_t token = 0; token < lower_.size(); ++token) {
    const double kept = predecessors[token] - discount_of(lower_discounts_, predecessors[token]);
    lower_[token] = kept / kinds + discounted / kinds / static_cast<double>(vocabulary_size);
  }
}

double KneserNeyBigram::probability(std::int32_t context, std::int32_t token) const {
  const Context& state = contexts_[static_cast<std::size_t>(context)];
  const auto found = pairs_.find(pair_key(context, token));
  const std::uint32_t count = found == pairs_.end() ? 0 : found->second;
  const double kept = count == 0 ? 0.0 : (count - discount_of(pair_discounts_, count)) / state.count;
  return kept + state.back_off * lower_probability(token);
}

double KneserNeyBigram::loss(std::span<const std::int32_t> stream) const {
  if (stream.size() < 2) fail("a held-out loss needs at least 2 tokens, not {}", stream.size());
  double sum = 0;
  for (std::size_t i = 1; i < stream.size(); ++i) sum -= std::log(probability(stream[i - 1], stream[i]));
  return sum / static_cast<double>(stream.size() - 1);
}

}  // namespace paceline
