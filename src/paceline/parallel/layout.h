#pragma once

#include <string>
#include <vector>

namespace paceline {

/// Where a rank stands in the grid.
struct Coordinate {
  int dp = 0;
  int tp = 0;
  int pp = 0;
  bool operator==(const Coordinate&) const = default;
};

/// The degrees of parallelism of a run, and the only place where rank arithmetic is done.
/// Ranks are ordered tp fastest, then dp, then pp: rank = (pp * dp_degree + dp) * tp_degree + tp.
struct Layout {
  int dp = 1;  ///< data-parallel replicas
  int tp = 1;  ///< tensor-parallel ranks of a layer
  int pp = 1;  ///< pipeline stages

  int world_size() const { return dp * tp * pp; }
  Coordinate coordinate(int rank) const;
  int rank(Coordinate coordinate) const;

  /// The ranks that share everything with `rank` but the named degree, in the order of that degree.
  std::vector<int> tensor_group(int rank) const;
  std::vector<int> data_group(int rank) const;
  std::vector<int> pipeline_group(int rank) const;
  /// The ranks of one model replica (tensor x pipeline), tp fastest.
  std::vector<int> model_group(int rank) const;

  /// "dp=2,tp=2,pp=1"
  std::string text() const;
  bool operator==(const Layout&) const = default;
};

/// Reads "dp=2,tp=2" (order free, missing degrees 1); refuses anything else.
Layout parse_layout(const std::string& text);

}  // namespace paceline
