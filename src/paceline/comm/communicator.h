#pragma once

#include "paceline/comm/work.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

enum class ReduceOp { sum, max };

/// A group of ranks that talk to each other. Peers and roots are ranks of the group, 0 to size() - 1.
///
/// Tensors are contiguous CPU tensors. Every rank of the group calls the same collectives in the same order, with
/// tensors of the same type and number of elements. All ranks get the same bits from a collective, and the same bits
/// every time: sums are taken in an order that depends on the ranks alone. bfloat16 and float16 are summed in float32.
/// A maximum is NaN where any rank's element is NaN.
///
/// Errors (a dead peer, an abort, the time limit) are thrown as Error naming the group and the ranks.
class Communicator {
 public:
  /// Message tags of point-to-point calls are below this.
  static constexpr int tag_limit = 1 << 20;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;
  /// The world rank of each rank of the group.
  virtual const std::vector<int>& world_ranks() const = 0;

  /// Sends a copy and returns at once, whether or not the peer is receiving yet.
  virtual void send(const at::Tensor& tensor, int peer, int tag) = 0;
  /// Sends without a copy: the tensor stays as it is until the work was waited for.
  virtual std::unique_ptr<Work> send_start(const at::Tensor& tensor, int peer, int tag) = 0;
  /// Fills `tensor` with the peer's next message of this tag, which has exactly its size. Messages of one tag keep
  /// their order; a receive started before the message arrives saves a copy.
  virtual std::unique_ptr<Work> receive_start(at::Tensor& tensor, int peer, int tag) = 0;
  void receive(at::Tensor& tensor, int peer, int tag) { receive_start(tensor, peer, tag)->wait(); }

  /// Replaces `tensor` on every rank by the element-wise reduction over the ranks.
  virtual void all_reduce(at::Tensor& tensor, ReduceOp op) = 0;
  /// The same beside the caller's work, on the communication thread of this rank: operations of all groups of this rank
  /// run there one after the other in the order in which they were started, so every rank starts those that it shares
  /// with others in the same order.
  virtual std::unique_ptr<Work> all_reduce_start(at::Tensor& tensor, ReduceOp op) = 0;
  /// Replaces `tensor` on every rank by the root's.
  virtual void broadcast(at::Tensor& tensor, int root) = 0;
  /// Fills `output` (size() times as many elements) with every rank's `input`, in rank order.
  virtual void all_gather(const at::Tensor& input, at::Tensor& output) = 0;
  /// Fills `output` with this rank's part of the reduction of `input` (size() times as many elements).
  virtual void reduce_scatter(const at::Tensor& input, at::Tensor& output, ReduceOp op) = 0;
  /// Returns once every rank has called it.
  virtual void barrier() = 0;

  /// For control data of any length: every rank's bytes in rank order, and the root's bytes.
  virtual std::vector<std::string> all_gather_bytes(const std::string& bytes) = 0;
  virtual std::string broadcast_bytes(const std::string& bytes, int root) = 0;

  /// While on (on all ranks alike), every collective first compares operation, type and number of elements between the
  /// ranks, and every message is preceded by its own; an Error names the ranks that differ. While off, a difference may
  /// end the process or go unnoticed. One more small message a call: for the first step of a run, and tests. Receives
  /// of one peer and tag are then waited for in the order in which they were started.
  virtual void set_checked(bool checked) = 0;

  /// Makes every pending and later call of this rank, in this and all groups on the same transport, throw within half
  /// a second. May be called from any thread.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace paceline
