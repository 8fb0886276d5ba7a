#include "paceline/cluster/profile.h"

#include "paceline/base/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace paceline {
namespace {

double log_distance(double a, double b) { return std::abs(std::log2(std::max(a, 1e-300) / std::max(b, 1e-300))); }

double distance(Occupancy a, Occupancy b) {
  return 2 * log_distance(a.threads, b.threads) + log_distance(a.ranks, b.ranks);
}

/// The entries among `candidates` whose occupancy is nearest to the asked one.
template <typename Entry>
std::vector<const Entry*> nearest(const std::vector<const Entry*>& candidates, Occupancy occupancy) {
  double least = std::numeric_limits<double>::infinity();
  for (const Entry* entry : candidates) least = std::min(least, distance(entry->occupancy, occupancy));
  std::vector<const Entry*> result;
  for (const Entry* entry : candidates) {
    if (distance(entry->occupancy, occupancy) <= least + 1e-12) result.push_back(entry);
  }
  return result;
}

double thread_ratio(Occupancy asked, Occupancy measured) {
  return static_cast<double>(asked.threads) / static_cast<double>(measured.threads);
}

/// Inverse-distance weighting (Shepard, 1968) of rates over logarithms of sizes: exact at the measured points, between
/// the measured values everywhere.
template <std::size_t N>
double interpolate(const std::array<double, N>& asked, const std::vector<std::pair<std::array<double, N>, double>>& points) {
  double weights = 0.0, sum = 0.0;
  for (const auto& [sizes, rate] : points) {
    double squared = 0.0;
    for (std::size_t i = 0; i < N; ++i) squared += std::pow(std::log2(asked[i] / sizes[i]), 2);
    if (squared < 1e-18) return rate;
    const double weight = 1.0 / (squared * squared);
    weights += weight;
    sum += weight * rate;
  }
  return sum / weights;
}

template <typename Entry>
std::vector<const Entry*> of_precision(const std::vector<Entry>& entries, const std::string& precision) {
  std::vector<const Entry*> result;
  for (const Entry& entry : entries) {
    if (entry.precision == precision) result.push_back(&entry);
  }
  return result;
}

/// The curve of one group: seconds at the given number of bytes.
double along_curve(const std::vector<const MessageTime*>& curve, double bytes) {
  if (bytes <= curve.front()->bytes) return curve.front()->seconds;
  if (curve.size() == 1) return curve.front()->seconds * bytes / std::max(curve.front()->bytes, 1.0);
  std::size_t upper = 1;
  while (upper + 1 < curve.size() && curve[upper]->bytes < bytes) ++upper;
  const MessageTime& a = *curve[upper - 1];
  const MessageTime& b = *curve[upper];
  return std::max(a.seconds + (b.seconds - a.seconds) * (bytes - a.bytes) / (b.bytes - a.bytes), curve.front()->seconds);
}

}  // namespace

double MachineProfile::product_flops_per_s(const std::string& precision, Occupancy occupancy, Pass pass,
                                           std::int64_t tokens, std::int64_t in, std::int64_t out) const {
  std::vector<const ProductRate*> entries = of_precision(products, precision);
  if (entries.empty()) {
    PACELINE_CHECK(precision != "fp32");
    return product_flops_per_s("fp32", occupancy, pass, tokens, in, out) / 2;
  }
  std::vector<const ProductRate*> of_pass;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(of_pass),
               [&](const ProductRate* entry) { return entry->pass == pass; });
  entries = nearest(of_pass.empty() ? entries : of_pass, occupancy);
  std::vector<std::pair<std::array<double, 3>, double>> points;
  for (const ProductRate* entry : entries) {
    points.push_back({{static_cast<double>(entry->tokens), static_cast<double>(entry->in), static_cast<double>(entry->out)},
                      entry->flops_per_s});
  }
  const std::array<double, 3> asked{static_cast<double>(tokens), static_cast<double>(in), static_cast<double>(out)};
  return interpolate(asked, points) * thread_ratio(occupancy, entries.front()->occupancy);
}

double MachineProfile::attention_flops_per_s(const std::string& precision, Occupancy occupancy, bool forward,
                                             std::int64_t sequence_length, std::int64_t head_dim) const {
  std::vector<const AttentionRate*> entries = of_precision(attention, precision);
  if (entries.empty()) {
    PACELINE_CHECK(precision != "fp32");
    return attention_flops_per_s("fp32", occupancy, forward, sequence_length, head_dim) / 2;
  }
  entries = nearest(entries, occupancy);
  std::vector<std::pair<std::array<double, 2>, double>> points;
  for (const AttentionRate* entry : entries) {
    points.push_back({{static_cast<double>(entry->sequence_length), static_cast<double>(entry->head_dim)},
                      forward ? entry->forward_flops_per_s : entry->backward_flops_per_s});
  }
  const std::array<double, 2> asked{static_cast<double>(sequence_length), static_cast<double>(head_dim)};
  return interpolate(asked, points) * thread_ratio(occupancy, entries.front()->occupancy);
}

double MachineProfile::operation_bytes_per_s(const std::string& operation, Occupancy occupancy, bool forward) const {
  std::vector<const OperationRate*> entries;
  for (const OperationRate& entry : operations) {
    if (entry.operation == operation) entries.push_back(&entry);
  }
  if (entries.empty()) return memory_bytes_per_s(occupancy);
  const OperationRate& entry = *nearest(entries, occupancy).front();
  const double rate = forward || entry.backward_bytes_per_s <= 0 ? entry.forward_bytes_per_s : entry.backward_bytes_per_s;
  return rate * thread_ratio(occupancy, entry.occupancy);
}

double MachineProfile::memory_bytes_per_s(Occupancy occupancy) const {
  std::vector<const MemoryRate*> entries;
  for (const MemoryRate& entry : memory) entries.push_back(&entry);
  PACELINE_CHECK(!entries.empty());
  const MemoryRate& entry = *nearest(entries, occupancy).front();
  return entry.bytes_per_s * thread_ratio(occupancy, entry.occupancy);
}

double MachineProfile::message_seconds(const std::string& backend, const std::string& operation, int ranks, int groups,
                                       double bytes) const {
  if (ranks < 2) return 0.0;
  std::vector<const MessageTime*> entries;
  for (const MessageTime& entry : messages) {
    if (entry.backend == backend && entry.operation == operation) entries.push_back(&entry);
  }
  if (entries.empty()) return built_in_profile(cores).message_seconds(backend, operation, ranks, groups, bytes);
  const auto away = [&](const MessageTime* entry) {
    return 2 * log_distance(entry->ranks, ranks) + log_distance(entry->groups, groups);
  };
  double least = std::numeric_limits<double>::infinity();
  for (const MessageTime* entry : entries) least = std::min(least, away(entry));
  std::erase_if(entries, [&](const MessageTime* entry) { return away(entry) > least + 1e-12; });
  const int measured_ranks = entries.front()->ranks, measured_groups = entries.front()->groups;
  std::erase_if(entries, [&](const MessageTime* entry) {
    return entry->ranks != measured_ranks || entry->groups != measured_groups;
  });
  std::sort(entries.begin(), entries.end(), [](const MessageTime* a, const MessageTime* b) { return a->bytes < b->bytes; });

  const double latency = entries.front()->seconds;
  const double rest = along_curve(entries, bytes) - latency;
  const double hops = std::log2(static_cast<double>(ranks)) / std::log2(static_cast<double>(measured_ranks));
  const auto share = [](int n) { return static_cast<double>(n - 1) / static_cast<double>(n); };
  const auto sharing = [&](int all) { return std::max(1.0, static_cast<double>(all) / static_cast<double>(cores)); };
  const double crowd = sharing(ranks * groups) / sharing(measured_ranks * measured_groups);
  return (latency * hops + rest * share(ranks) / share(measured_ranks)) * std::max(1.0, crowd);
}

double MachineProfile::peak_flops_per_s(const std::string& precision, Occupancy occupancy) const {
  std::vector<const ProductRate*> entries = of_precision(products, precision);
  if (entries.empty()) {
    PACELINE_CHECK(precision != "fp32");
    return peak_flops_per_s("fp32", occupancy) / 2;
  }
  double peak = 0.0;
  entries = nearest(entries, occupancy);
  for (const ProductRate* entry : entries) peak = std::max(peak, entry->flops_per_s);
  return peak * thread_ratio(occupancy, entries.front()->occupancy);
}

MachineProfile built_in_profile(int cores) {
  // One core of a ten-year-old server: AVX2 at 2.5 GHz and half of its peak, and a fair share of two memory channels.
  MachineProfile profile;
  profile.cpu = "unknown";
  profile.cores = std::max(cores, 1);
  profile.products = {{.tokens = 1024, .in = 1024, .out = 1024, .flops_per_s = 40e9}};
  profile.attention = {
      {.sequence_length = 256, .head_dim = 64, .forward_flops_per_s = 15e9, .backward_flops_per_s = 10e9}};
  profile.memory = {{.bytes_per_s = 6e9}};
  for (const char* backend : {"gloo", "shared_memory", "threads"}) {
    const double latency = std::string(backend) == "gloo" ? 100e-6 : 10e-6;
    for (const char* operation : {"send", "all_reduce"}) {
      for (const double bytes : {1024.0, 16.0 * 1024 * 1024}) {
        profile.messages.push_back({.backend = backend, .operation = operation, .ranks = 2, .bytes = bytes,
                                    .seconds = latency + bytes / 1e9});
      }
    }
  }
  profile.operation_overhead_s = 10e-6;
  profile.action_overhead_s = 20e-6;
  profile.disk_read_bytes_per_s = 200e6;
  profile.disk_write_bytes_per_s = 100e6;
  return profile;
}

std::string pass_name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward_input: return "backward_input";
    case Pass::backward_weight: return "backward_weight";
  }
  return "unknown";
}

}  // namespace paceline
