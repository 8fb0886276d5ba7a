#include "paceline/comm/group_communicator.h"

#include "paceline/base/error.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

namespace paceline {
namespace {

void check_tensor(const at::Tensor& tensor) {
  PACELINE_CHECK(tensor.defined() && tensor.is_contiguous() && tensor.device().is_cpu());
}

/// A tag on the wire: the group's number, what the message is, and the caller's tag or the collective's number.
enum class Kind : std::uint32_t { message, collective, signature };

std::uint32_t wire_tag(std::uint32_t group, Kind kind, std::uint32_t value) {
  return group << 22 | static_cast<std::uint32_t>(kind) << 20 | value;
}

/// Holds the tensor while an operation on its memory is under way, and names the operation in errors.
class TensorWork : public Work {
 public:
  TensorWork(std::unique_ptr<Work> work, at::Tensor tensor, std::string description)
      : tensor_(std::move(tensor)), work_(std::move(work)), description_(std::move(description)) {}

  void wait() override {
    try {
      work_->wait();
    } catch (const Error& error) {
      throw Error(description_ + ": " + error.what(), error.code());
    }
  }

 private:
  at::Tensor tensor_;
  std::unique_ptr<Work> work_;
  std::string description_;
};

class DoneWork : public Work {
 public:
  void wait() override {}
};

/// What the ranks of a checked collective compare.
struct Signature {
  char operation[24] = {};
  std::int64_t type = 0;
  std::int64_t elements = 0;
  std::int64_t detail = 0;
  bool operator==(const Signature& other) const { return std::memcmp(this, &other, sizeof(Signature)) == 0; }
  std::string text() const {
    return fmt::format("{} of {} {} elements ({})", operation, elements,
                       c10::toString(static_cast<at::ScalarType>(type)), detail);
  }
};
static_assert(std::has_unique_object_representations_v<Signature>);

Signature signature_of(const char* operation, const at::Tensor& tensor, int detail) {
  Signature signature;
  std::strncpy(signature.operation, operation, sizeof(signature.operation) - 1);
  signature.type = static_cast<std::int64_t>(tensor.scalar_type());
  signature.elements = tensor.numel();
  signature.detail = detail;
  return signature;
}

/// The receive of a checked message: the data is asked for once its signature is the expected one, since a backend may
/// end the process when a longer message comes than was asked for.
class CheckedReceive : public Work {
 public:
  CheckedReceive(Transport& transport, at::Tensor tensor, int peer, std::uint32_t signature_tag,
                 std::uint32_t message_tag, int tag)
      : transport_(transport),
        tensor_(std::move(tensor)),
        peer_(peer),
        message_tag_(message_tag),
        expected_(signature_of("message", tensor_, tag)),
        work_(transport.receive_start(&sent_, sizeof(sent_), peer, signature_tag)) {}

  void wait() override {
    work_->wait();
    if (!(sent_ == expected_)) {
      fail("rank {} sent {}, rank {} expects {}", peer_, sent_.text(), transport_.rank(), expected_.text());
    }
    transport_.receive_start(tensor_.data_ptr(), tensor_.nbytes(), peer_, message_tag_)->wait();
  }

 private:
  Transport& transport_;
  at::Tensor tensor_;
  int peer_;
  std::uint32_t message_tag_;
  Signature expected_;
  Signature sent_;
  std::unique_ptr<Work> work_;
};

}  // namespace

GroupCommunicator::GroupCommunicator(std::shared_ptr<Transport> transport, std::vector<int> world_ranks,
                                     std::string name, std::uint32_t group, CommunicationThread& thread)
    : transport_(std::move(transport)),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      group_(group),
      thread_(thread) {
  const auto place = std::find(world_ranks_.begin(), world_ranks_.end(), transport_->rank());
  PACELINE_CHECK(place != world_ranks_.end() && group < group_limit);
  rank_ = static_cast<int>(place - world_ranks_.begin());
}

template <typename F>
auto GroupCommunicator::named(const char* operation, const F& body) const {
  try {
    return body();
  } catch (const Error& error) {
    fail("{} in group '{}' (ranks {}): {}", operation, name_, fmt::join(world_ranks_, ", "), error.what());
  }
}

std::uint32_t GroupCommunicator::message_tag(int peer, int tag) const {
  PACELINE_CHECK(peer >= 0 && peer < size() && peer != rank_ && tag >= 0 && tag < tag_limit);
  return wire_tag(group_, Kind::message, static_cast<std::uint32_t>(tag));
}

void GroupCommunicator::send_signature(const at::Tensor& tensor, int peer, int tag) {
  const Signature signature = signature_of("message", tensor, tag);
  transport_->send(&signature, sizeof(signature), world_ranks_[peer],
                   wire_tag(group_, Kind::signature, static_cast<std::uint32_t>(tag)));
}

Collective GroupCommunicator::next_collective() {
  return {*transport_, world_ranks_, rank_, wire_tag(group_, Kind::collective, collectives_++ % tag_limit)};
}

void GroupCommunicator::send(const at::Tensor& tensor, int peer, int tag) {
  check_tensor(tensor);
  const std::uint32_t full_tag = message_tag(peer, tag);
  named("send", [&] {
    if (checked_) send_signature(tensor, peer, tag);
    transport_->send(tensor.const_data_ptr(), tensor.nbytes(), world_ranks_[peer], full_tag);
  });
}

std::unique_ptr<Work> GroupCommunicator::send_start(const at::Tensor& tensor, int peer, int tag) {
  check_tensor(tensor);
  const std::uint32_t full_tag = message_tag(peer, tag);
  auto work = named("send", [&] {
    if (checked_) send_signature(tensor, peer, tag);
    return transport_->send_start(tensor.const_data_ptr(), tensor.nbytes(), world_ranks_[peer], full_tag);
  });
  return std::make_unique<TensorWork>(
      std::move(work), tensor, fmt::format("send to rank {} in group '{}', tag {}", world_ranks_[peer], name_, tag));
}

std::unique_ptr<Work> GroupCommunicator::receive_start(at::Tensor& tensor, int peer, int tag) {
  check_tensor(tensor);
  const std::uint32_t full_tag = message_tag(peer, tag);
  auto work = named("receive", [&]() -> std::unique_ptr<Work> {
    if (checked_) {
      return std::make_unique<CheckedReceive>(*transport_, tensor, world_ranks_[peer],
                                              wire_tag(group_, Kind::signature, static_cast<std::uint32_t>(tag)),
                                              full_tag, tag);
    }
    return transport_->receive_start(tensor.data_ptr(), tensor.nbytes(), world_ranks_[peer], full_tag);
  });
  return std::make_unique<TensorWork>(
      std::move(work), tensor,
      fmt::format("receive from rank {} in group '{}', tag {}", world_ranks_[peer], name_, tag));
}

void GroupCommunicator::compare(const Collective& call, const char* operation, const at::Tensor& tensor, int detail) {
  std::vector<Signature> all(size());
  all[rank_] = signature_of(operation, tensor, detail);
  all_gather_ring(call, all.data(), std::vector<std::size_t>(size(), sizeof(Signature)));
  for (int peer = 1; peer < size(); ++peer) {
    if (all[peer] == all[0]) continue;
    fail("rank {} calls {}, rank {} calls {}", world_ranks_[0], all[0].text(), world_ranks_[peer], all[peer].text());
  }
}

void GroupCommunicator::all_reduce_on(const Collective& call, at::Tensor& tensor, ReduceOp op) {
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::ScalarType::BFloat16 || type == at::ScalarType::Half) {
    at::Tensor wide = tensor.to(at::ScalarType::Float);
    all_reduce_by_size(call, wide.data_ptr(), wide.numel(), at::ScalarType::Float, op);
    tensor.copy_(wide);
  } else {
    all_reduce_by_size(call, tensor.data_ptr(), tensor.numel(), type, op);
  }
}

void GroupCommunicator::all_reduce(at::Tensor& tensor, ReduceOp op) {
  check_tensor(tensor);
  if (size() == 1) return;
  named("all_reduce", [&] {
    if (checked_) compare(next_collective(), "all_reduce", tensor, static_cast<int>(op));
    all_reduce_on(next_collective(), tensor, op);
  });
}

std::unique_ptr<Work> GroupCommunicator::all_reduce_start(at::Tensor& tensor, ReduceOp op) {
  check_tensor(tensor);
  if (size() == 1) return std::make_unique<DoneWork>();
  std::optional<Collective> comparison;
  if (checked_) comparison.emplace(next_collective());
  const Collective call = next_collective();
  return thread_.start([this, comparison, call, tensor, op]() mutable {
    named("all_reduce", [&] {
      if (comparison) compare(*comparison, "all_reduce", tensor, static_cast<int>(op));
      all_reduce_on(call, tensor, op);
    });
  });
}

void GroupCommunicator::broadcast(at::Tensor& tensor, int root) {
  check_tensor(tensor);
  PACELINE_CHECK(root >= 0 && root < size());
  if (size() == 1) return;
  named("broadcast", [&] {
    if (checked_) compare(next_collective(), "broadcast", tensor, root);
    broadcast_tree(next_collective(), tensor.data_ptr(), tensor.nbytes(), root);
  });
}

void GroupCommunicator::all_gather(const at::Tensor& input, at::Tensor& output) {
  check_tensor(input);
  check_tensor(output);
  PACELINE_CHECK(output.scalar_type() == input.scalar_type() && output.numel() == input.numel() * size());
  named("all_gather", [&] {
    if (checked_ && size() > 1) compare(next_collective(), "all_gather", input, 0);
    const std::size_t part = input.nbytes();
    if (part > 0) std::memcpy(static_cast<std::byte*>(output.data_ptr()) + rank_ * part, input.const_data_ptr(), part);
    all_gather_ring(next_collective(), output.data_ptr(), std::vector<std::size_t>(size(), part));
  });
}

void GroupCommunicator::reduce_scatter(const at::Tensor& input, at::Tensor& output, ReduceOp op) {
  check_tensor(input);
  check_tensor(output);
  PACELINE_CHECK(output.scalar_type() == input.scalar_type() && input.numel() == output.numel() * size());
  named("reduce_scatter", [&] {
    if (checked_ && size() > 1) compare(next_collective(), "reduce_scatter", input, static_cast<int>(op));
    const at::ScalarType type = input.scalar_type();
    const bool narrow = type == at::ScalarType::BFloat16 || type == at::ScalarType::Half;
    at::Tensor work = narrow ? input.to(at::ScalarType::Float) : input.clone();
    reduce_scatter_ring(next_collective(), work.data_ptr(), output.numel(), work.scalar_type(), op);
    output.view({-1}).copy_(work.view({-1}).narrow(0, rank_ * output.numel(), output.numel()));
  });
}

void GroupCommunicator::barrier() {
  named("barrier", [&] { barrier_dissemination(next_collective()); });
}

std::vector<std::string> GroupCommunicator::all_gather_bytes(const std::string& bytes) {
  return named("all_gather_bytes", [&] {
    std::vector<std::size_t> lengths(size());
    lengths[rank_] = bytes.size();
    all_gather_ring(next_collective(), lengths.data(), std::vector<std::size_t>(size(), sizeof(std::size_t)));
    std::size_t total = 0;
    std::size_t own = 0;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) own = total;
      total += lengths[peer];
    }
    std::string joined(total, '\0');
    bytes.copy(joined.data() + own, bytes.size());
    all_gather_ring(next_collective(), joined.data(), lengths);
    std::vector<std::string> parts;
    std::size_t begin = 0;
    for (const std::size_t length : lengths) {
      parts.push_back(joined.substr(begin, length));
      begin += length;
    }
    return parts;
  });
}

std::string GroupCommunicator::broadcast_bytes(const std::string& bytes, int root) {
  PACELINE_CHECK(root >= 0 && root < size());
  return named("broadcast_bytes", [&] {
    std::uint64_t length = bytes.size();
    broadcast_tree(next_collective(), &length, sizeof(length), root);
    std::string result = rank_ == root ? bytes : std::string(length, '\0');
    broadcast_tree(next_collective(), result.data(), length, root);
    return result;
  });
}

}  // namespace paceline
