#include "paceline/parallel/layout.h"

#include "paceline/base/error.h"

#include <charconv>
#include <cstdint>

namespace paceline {

Coordinate Layout::coordinate(int rank) const {
  PACELINE_CHECK(rank >= 0 && rank < world_size());
  return {.dp = rank / tp % dp, .tp = rank % tp, .pp = rank / (tp * dp)};
}

int Layout::rank(Coordinate at) const { return (at.pp * dp + at.dp) * tp + at.tp; }

std::vector<int> Layout::tensor_group(int member) const {
  Coordinate at = coordinate(member);
  std::vector<int> ranks;
  for (at.tp = 0; at.tp < tp; ++at.tp) ranks.push_back(rank(at));
  return ranks;
}

std::vector<int> Layout::data_group(int member) const {
  Coordinate at = coordinate(member);
  std::vector<int> ranks;
  for (at.dp = 0; at.dp < dp; ++at.dp) ranks.push_back(rank(at));
  return ranks;
}

std::vector<int> Layout::pipeline_group(int member) const {
  Coordinate at = coordinate(member);
  std::vector<int> ranks;
  for (at.pp = 0; at.pp < pp; ++at.pp) ranks.push_back(rank(at));
  return ranks;
}

std::vector<int> Layout::model_group(int member) const {
  Coordinate at = coordinate(member);
  std::vector<int> ranks;
  for (at.pp = 0; at.pp < pp; ++at.pp) {
    for (at.tp = 0; at.tp < tp; ++at.tp) ranks.push_back(rank(at));
  }
  return ranks;
}

std::string Layout::text() const { return fmt::format("dp={},tp={},pp={}", dp, tp, pp); }

Layout parse_layout(const std::string& text) {
  Layout layout;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    const std::string key = item.substr(0, equals);
    int* degree = key == "dp" ? &layout.dp : key == "tp" ? &layout.tp : key == "pp" ? &layout.pp : nullptr;
    int value = 0;
    const char* first = item.data() + (equals == std::string::npos ? item.size() : equals + 1);
    const auto parsed = std::from_chars(first, item.data() + item.size(), value);
    if (degree == nullptr || parsed.ec != std::errc{} || parsed.ptr != item.data() + item.size() || value < 1) {
      refuse("layout '{}': '{}' is not one of dp=N, tp=N, pp=N with N >= 1", text, item);
    }
    *degree = value;
    begin = end + 1;
  }
  constexpr std::int64_t most_ranks = 1 << 20;
  if (layout.dp > most_ranks || layout.tp > most_ranks || layout.pp > most_ranks ||
      std::int64_t{layout.dp} * layout.tp * layout.pp > most_ranks) {
    refuse("layout '{}' has more ranks than there can be ({})", text, most_ranks);
  }
  return layout;
}

}  // namespace paceline
