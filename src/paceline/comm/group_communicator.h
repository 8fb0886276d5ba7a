#pragma once

#include "paceline/comm/collectives.h"
#include "paceline/comm/communication_thread.h"
#include "paceline/comm/communicator.h"
#include "paceline/comm/transport.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

/// A group on any transport, with the algorithms of collectives.h. A group's number sets its messages apart from those
/// of all other groups between the same ranks.
class GroupCommunicator : public Communicator {
 public:
  static constexpr std::uint32_t group_limit = 1 << 9;

  /// `world_ranks` holds the transport's rank; `group` is the same on all of them. `thread` outlives the communicator.
  GroupCommunicator(std::shared_ptr<Transport> transport, std::vector<int> world_ranks, std::string name,
                    std::uint32_t group, CommunicationThread& thread);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const override { return name_; }
  const std::vector<int>& world_ranks() const override { return world_ranks_; }

  void send(const at::Tensor& tensor, int peer, int tag) override;
  std::unique_ptr<Work> send_start(const at::Tensor& tensor, int peer, int tag) override;
  std::unique_ptr<Work> receive_start(at::Tensor& tensor, int peer, int tag) override;
  void all_reduce(at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> all_reduce_start(at::Tensor& tensor, ReduceOp op) override;
  void broadcast(at::Tensor& tensor, int root) override;
  void all_gather(const at::Tensor& input, at::Tensor& output) override;
  void reduce_scatter(const at::Tensor& input, at::Tensor& output, ReduceOp op) override;
  void barrier() override;
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override;
  std::string broadcast_bytes(const std::string& bytes, int root) override;
  void set_checked(bool checked) override { checked_ = checked; }
  void abort(const std::string& reason) override { transport_->abort(reason); }

 private:
  std::uint32_t message_tag(int peer, int tag) const;
  void send_signature(const at::Tensor& tensor, int peer, int tag);
  Collective next_collective();
  void compare(const Collective& call, const char* operation, const at::Tensor& tensor, int detail);
  void all_reduce_on(const Collective& call, at::Tensor& tensor, ReduceOp op);
  template <typename F>
  auto named(const char* operation, const F& body) const;

  std::shared_ptr<Transport> transport_;
  std::vector<int> world_ranks_;
  std::string name_;
  std::uint32_t group_;
  CommunicationThread& thread_;
  int rank_ = 0;
  bool checked_ = false;
  std::atomic<std::uint32_t> collectives_ = 0;
};

}  // namespace paceline
