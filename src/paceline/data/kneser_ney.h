#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace paceline {

/// Interpolated modified Kneser-Ney bigram (Chen and Goodman, "An empirical study of smoothing techniques for language
/// modeling", 1998, section 3):
///   P(w | u) = (c(u w) - D(c(u w))) / c(u .) + (D1 N1(u .) + D2 N2(u .) + D3 N3+(u .)) / c(u .) * P(w)
///   P(w)     = (N(. w) - E(N(. w))) / N(. .) + (E1 M1 + E2 M2 + E3 M3+) / N(. .) / vocabulary_size
/// with c the counts of pairs, N(. w) the number of different tokens before w, Nk(u .) the number of tokens that follow
/// u exactly k times, Mk the number of w with N(. w) = k. Discounts by counts of counts n1..n4 of their level:
///   Y = n1 / (n1 + 2 n2), D1 = 1 - 2 Y n2 / n1, D2 = 2 - 3 Y n3 / n2, D3 = 3 - 4 Y n4 / n3.
/// Where one of n1..n4 is 0 (toy corpora), all three are Y, or 1/2 if Y is not defined either.
class KneserNeyBigram {
 public:
  KneserNeyBigram(std::span<const std::int32_t> stream, std::int64_t vocabulary_size);

  double probability(std::int32_t context, std::int32_t token) const;

  /// Mean negative log probability, nats a token, of all tokens of the stream but the first, each given the one before
  /// (across document borders too): the targets that a TokenLoader over the same stream yields, but for its ragged end.
  double loss(std::span<const std::int32_t> stream) const;

  /// The discounts of pairs and of the lower order, for counts 1, 2 and 3 or more.
  const std::array<double, 3>& pair_discounts() const { return pair_discounts_; }
  const std::array<double, 3>& lower_discounts() const { return lower_discounts_; }

 private:
  struct Context {
    double count = 0;     ///< c(u .)
    double back_off = 0;  ///< weight of the lower order
  };
  double lower_probability(std::int32_t token) const { return lower_[static_cast<std::size_t>(token)]; }

  std::unordered_map<std::uint64_t, std::uint32_t> pairs_;
  std::vector<Context> contexts_;
  std::vector<double> lower_;
  std::array<double, 3> pair_discounts_{};
  std::array<double, 3> lower_discounts_{};
};

}  // namespace paceline
