#pragma once

#include "paceline/comm/communicator.h"
#include "paceline/comm/transport.h"
#include "paceline/parallel/layout.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

class CommunicationThread;

/// The groups that one rank takes part in, on one transport. Making the set is collective over all ranks.
class CommunicatorSet {
 public:
  /// Throws Error when the transport's size is not the layout's.
  CommunicatorSet(std::shared_ptr<Transport> transport, const Layout& layout);
  ~CommunicatorSet();

  const Layout& layout() const { return layout_; }
  int rank() const { return transport_->rank(); }

  Communicator& world() { return *world_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& pipeline() { return *pipeline_; }
  Communicator& data() { return *data_; }
  /// The ranks of one replica: tensor x pipeline.
  Communicator& model() { return *model_; }

  /// A group of these world ranks, whose ranks are numbered in this order; this rank is one of them. Collective over
  /// the members: each makes the groups that it shares with others in the same order. The set outlives its groups.
  std::unique_ptr<Communicator> make_group(const std::vector<int>& world_ranks, const std::string& name);

  void abort(const std::string& reason) { transport_->abort(reason); }

 private:
  Layout layout_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<CommunicationThread> thread_;
  std::uint32_t next_group_ = 1;  ///< group 0 is kept for making groups
  std::unique_ptr<Communicator> world_, tensor_, pipeline_, data_, model_;
};

}  // namespace paceline
