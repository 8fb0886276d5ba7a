#include "paceline/comm/communicator_set.h"

#include "paceline/base/error.h"
#include "paceline/comm/communication_thread.h"
#include "paceline/comm/group_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace paceline {
namespace {

/// Group 0 is kept for making groups; this is its only tag.
constexpr std::uint32_t agreement_tag = 0;
constexpr std::uint64_t disagreement = ~std::uint64_t{0};

struct Proposal {
  std::uint64_t group;  ///< the lowest number that this rank has not used
  std::uint64_t identity;
};

/// A number for the group that no member uses yet: the first member takes the largest proposal and tells the others.
std::uint32_t agree_on_group(Transport& transport, const std::vector<int>& world_ranks, const std::string& name,
                             std::uint32_t unused) {
  const std::string text = fmt::format("{}:{}", name, fmt::join(world_ranks, ","));
  Proposal own{.group = unused, .identity = std::hash<std::string>{}(text)};
  const int first = world_ranks.front();
  std::uint64_t group = own.group;
  if (transport.rank() == first) {
    int stranger = -1;
    for (std::size_t i = 1; i < world_ranks.size(); ++i) {
      Proposal other{};
      transport.receive_start(&other, sizeof(other), world_ranks[i], agreement_tag)->wait();
      if (other.identity != own.identity) stranger = world_ranks[i];
      group = std::max(group, other.group);
    }
    if (stranger >= 0) group = disagreement;
    for (std::size_t i = 1; i < world_ranks.size(); ++i) {
      transport.send(&group, sizeof(group), world_ranks[i], agreement_tag);
    }
    if (stranger >= 0) fail("group '{}': rank {} makes another group than rank {}", text, stranger, first);
  } else {
    transport.send(&own, sizeof(own), first, agreement_tag);
    transport.receive_start(&group, sizeof(group), first, agreement_tag)->wait();
    if (group == disagreement) fail("group '{}': the ranks do not make the same group", text);
  }
  if (group >= GroupCommunicator::group_limit) {
    fail("group '{}': a rank can take part in {} groups", text, GroupCommunicator::group_limit);
  }
  return static_cast<std::uint32_t>(group);
}

}  // namespace

CommunicatorSet::CommunicatorSet(std::shared_ptr<Transport> transport, const Layout& layout)
    : layout_(layout), transport_(std::move(transport)), thread_(std::make_unique<CommunicationThread>()) {
  if (transport_->size() != layout.world_size()) {
    refuse("layout {} needs {} ranks, but {} take part", layout.text(), layout.world_size(), transport_->size());
  }
  const int rank = transport_->rank();
  std::vector<int> everyone(layout.world_size());
  std::iota(everyone.begin(), everyone.end(), 0);
  world_ = make_group(everyone, "world");
  tensor_ = make_group(layout.tensor_group(rank), "tensor");
  pipeline_ = make_group(layout.pipeline_group(rank), "pipeline");
  data_ = make_group(layout.data_group(rank), "data");
  model_ = make_group(layout.model_group(rank), "model");
}

CommunicatorSet::~CommunicatorSet() = default;

std::unique_ptr<Communicator> CommunicatorSet::make_group(const std::vector<int>& world_ranks,
                                                          const std::string& name) {
  PACELINE_CHECK(std::count(world_ranks.begin(), world_ranks.end(), rank()) == 1);
  const std::uint32_t group = agree_on_group(*transport_, world_ranks, name, next_group_);
  next_group_ = group + 1;
  return std::make_unique<GroupCommunicator>(transport_, world_ranks, name, group, *thread_);
}

}  // namespace paceline
