#include "paceline/base/nearest_name.h"

#include <algorithm>
#include <numeric>

namespace paceline {
namespace {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view wrong, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = static_cast<std::size_t>(-1);
  const std::string_view last_part = wrong.substr(wrong.rfind('.') + 1);
  for (const std::string& name : known) {
    // A key put into the wrong table is nearer by its last part than by its whole name.
    const std::size_t whole = edit_distance(wrong, name);
    const std::size_t part = edit_distance(last_part, std::string_view(name).substr(name.rfind('.') + 1));
    const std::size_t distance = std::min(whole, part + 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

}  // namespace paceline
