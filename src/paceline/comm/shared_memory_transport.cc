#include "paceline/comm/shared_memory_transport.h"

#include "paceline/base/error.h"
#include "paceline/comm/collectives.h"
#include "paceline/comm/network_address.h"
#include "paceline/comm/shared_segment.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace paceline {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t ring_bytes = SharedSegment::ring_bytes;
/// A long message is handed over in pieces, so that its receiver copies one while its sender copies the next.
constexpr std::size_t piece_bytes = 256 << 10;
/// How often a sleeper looks whether the rank that it waits for still lives.
constexpr milliseconds presence_check_interval(200);
/// How long to look for news before sleeping, where every local rank has a core.
constexpr std::chrono::microseconds spin_time(30);

/// Precedes each message in a ring. Messages are padded to its size, so it never wraps around.
struct MessageHeader {
  std::uint64_t bytes;
  std::uint32_t tag;
  std::uint32_t unused;
};
static_assert(ring_bytes % sizeof(MessageHeader) == 0 && piece_bytes % sizeof(MessageHeader) == 0);

std::size_t padded(std::size_t bytes) {
  return (bytes + sizeof(MessageHeader) - 1) / sizeof(MessageHeader) * sizeof(MessageHeader);
}

void copy_in(SharedSegment::Ring& ring, std::uint64_t position, const void* data, std::size_t bytes) {
  const std::size_t offset = position % ring_bytes;
  const std::size_t first = std::min(bytes, ring_bytes - offset);
  std::memcpy(ring.data + offset, data, first);
  if (bytes > first) std::memcpy(ring.data, static_cast<const std::byte*>(data) + first, bytes - first);
}

void copy_out(const SharedSegment::Ring& ring, std::uint64_t position, void* data, std::size_t bytes) {
  const std::size_t offset = position % ring_bytes;
  const std::size_t first = std::min(bytes, ring_bytes - offset);
  std::memcpy(data, ring.data + offset, first);
  if (bytes > first) std::memcpy(static_cast<std::byte*>(data) + first, ring.data, bytes - first);
}

/// A receive that was started. Guarded by the transport's mutex.
struct PostedReceive {
  void* data;
  std::size_t bytes;
  bool given_up = false;  ///< nothing is to be written any more
  bool done = false;
  std::size_t sent_bytes = 0;  ///< differs from `bytes` when the sender's message has another size
};

struct Message {
  std::unique_ptr<std::byte[]> data;
  std::size_t bytes = 0;
};

struct Slot {
  std::deque<Message> messages;
  std::deque<std::shared_ptr<PostedReceive>> receives;
};

/// What arrives from one peer.
struct Incoming {
  std::unordered_map<std::uint32_t, Slot> slots;
  bool in_message = false;  ///< a header was read, and not yet all of its message
  MessageHeader header{};
  std::size_t taken = 0;
  std::shared_ptr<PostedReceive> receive;  ///< where the message goes, else `message`
  Message message;
};

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<Transport> network, std::unique_ptr<SharedSegment> segment,
                        std::vector<int> local_ranks, milliseconds timeout)
      : network_(std::move(network)),
        segment_(std::move(segment)),
        local_ranks_(std::move(local_ranks)),
        place_(network_->size(), -1),
        timeout_(timeout),
        incoming_(local_ranks_.size()),
        outgoing_(local_ranks_.size()) {
    for (std::size_t i = 0; i < local_ranks_.size(); ++i) place_[local_ranks_[i]] = static_cast<int>(i);
    self_ = place_[network_->rank()];
    spins_ = std::thread::hardware_concurrency() >= local_ranks_.size();
    if (static_cast<int>(local_ranks_.size()) < size()) {
      receiver_ = std::thread([this] { take_in_beside_network(); });
    }
  }
  ~SharedMemoryTransport() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    segment_->ring_doorbell(self_);
    if (receiver_.joinable()) receiver_.join();
  }

  int rank() const override { return network_->rank(); }
  int size() const override { return network_->size(); }

  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    if (place_.at(peer) < 0) return network_->send(data, bytes, peer, tag);
    write_message(data, bytes, place_[peer], tag);
  }

  std::unique_ptr<Work> send_start(const void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    if (place_.at(peer) < 0) return network_->send_start(data, bytes, peer, tag);
    write_message(data, bytes, place_[peer], tag);
    return std::make_unique<SentWork>();
  }

  std::unique_ptr<Work> receive_start(void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    if (place_.at(peer) < 0) return network_->receive_start(data, bytes, peer, tag);
    const int place = place_[peer];
    auto receive = std::make_shared<PostedReceive>(PostedReceive{.data = data, .bytes = bytes});
    std::lock_guard lock(mutex_);
    check_alive();
    Slot& slot = incoming_[place].slots[tag];
    if (slot.messages.empty()) {
      slot.receives.push_back(receive);
    } else {
      const Message message = std::move(slot.messages.front());
      slot.messages.pop_front();
      erase_if_empty(incoming_[place], tag);
      deliver(*receive, message);
    }
    return std::make_unique<ReceiveWork>(*this, std::move(receive), place);
  }

  void abort(const std::string& reason) override {
    network_->abort(reason);
    {
      std::lock_guard lock(mutex_);
      if (!aborted_) reason_ = reason;
      aborted_ = true;
    }
    segment_->ring_doorbell(self_);
  }

 private:
  class SentWork : public Work {
   public:
    void wait() override {}
  };

  class ReceiveWork : public Work {
   public:
    ReceiveWork(SharedMemoryTransport& transport, std::shared_ptr<PostedReceive> receive, int place)
        : transport_(transport), receive_(std::move(receive)), place_(place) {}
    ~ReceiveWork() override {
      std::lock_guard lock(transport_.mutex_);
      receive_->given_up = true;
    }
    void wait() override {
      transport_.wait_until([&] { return receive_->done; }, place_);
      if (receive_->sent_bytes != receive_->bytes) {
        fail("rank {} sent {} bytes where rank {} expects {}: their tensors differ in shape or type",
             transport_.local_ranks_[place_], receive_->sent_bytes, transport_.rank(), receive_->bytes);
      }
    }

   private:
    SharedMemoryTransport& transport_;
    std::shared_ptr<PostedReceive> receive_;
    int place_;
  };

  void check_alive() const {
    if (aborted_) fail("communication aborted: {}", reason_);
  }

  static void erase_if_empty(Incoming& incoming, std::uint32_t tag) {
    const auto slot = incoming.slots.find(tag);
    if (slot->second.messages.empty() && slot->second.receives.empty()) incoming.slots.erase(slot);
  }

  static void deliver(PostedReceive& receive, const Message& message) {
    receive.sent_bytes = message.bytes;
    if (receive.bytes == message.bytes && message.bytes > 0) {
      std::memcpy(receive.data, message.data.get(), message.bytes);
    }
    receive.done = true;
  }

  /// Takes in what has arrived, taking in more until `condition` (under the mutex) holds. Throws when aborted, when the
  /// rank at `place` is gone, or at the time limit.
  template <typename Condition>
  void wait_until(const Condition& condition, int place) {
    const auto begin = steady_clock::now();
    bool seen_gone = false;
    while (true) {
      const std::uint32_t rings = segment_->rings(self_);
      bool completed = false;
      {
        std::lock_guard lock(mutex_);
        completed = take_in();
        const bool holds = condition();
        if (!holds) check_alive();
        if (holds) {
          if (completed) segment_->ring_doorbell(self_);  // another thread may wait for what was completed here
          return;
        }
      }
      if (completed) {
        segment_->ring_doorbell(self_);
        continue;
      }
      // What a rank sent before it ended is there by now.
      if (seen_gone) fail("rank {} is gone (its process has ended)", local_ranks_[place]);
      const auto waited = steady_clock::now() - begin;
      if (spins_ && waited < spin_time) continue;
      if (waited > timeout_) {
        fail("rank {} did not answer for {} s", local_ranks_[place], timeout_.count() / 1000.0);
      }
      if (segment_->rings(self_) == rings) segment_->sleep(self_, rings, std::min(timeout_, presence_check_interval));
      if (segment_->rings(self_) == rings) seen_gone = !segment_->is_present(place);
    }
  }

  /// A rank that waits for one on another machine takes nothing in, and a sender that waits for room in its ring may be
  /// the one that the other depends on: where there are other machines, a thread keeps the rings empty.
  void take_in_beside_network() {
    while (true) {
      const std::uint32_t rings = segment_->rings(self_);
      bool completed = false;
      {
        std::lock_guard lock(mutex_);
        if (ending_) return;
        completed = take_in();
      }
      if (completed) segment_->ring_doorbell(self_);
      segment_->sleep(self_, rings, presence_check_interval);
    }
  }

  /// Copies what has arrived to where it belongs. True when a message is complete. Needs the mutex.
  bool take_in() {
    bool completed = false;
    for (int place = 0; place < static_cast<int>(incoming_.size()); ++place) {
      if (place == self_) continue;
      while (take_piece(incoming_[place], segment_->ring(place, self_), completed)) segment_->ring_doorbell(place);
    }
    return completed;
  }

  bool take_piece(Incoming& incoming, SharedSegment::Ring& ring, bool& completed) {
    std::uint64_t position = ring.read.load(std::memory_order_relaxed);
    std::size_t available = ring.written.load(std::memory_order_acquire) - position;
    if (available == 0) return false;
    if (!incoming.in_message) {
      copy_out(ring, position, &incoming.header, sizeof(MessageHeader));
      position += sizeof(MessageHeader);
      available -= sizeof(MessageHeader);
      begin_message(incoming);
    }
    const std::size_t rest = incoming.header.bytes - incoming.taken;
    const std::size_t bytes = std::min({rest, available, piece_bytes});
    if (bytes > 0) {
      if (incoming.receive == nullptr) {
        copy_out(ring, position, incoming.message.data.get() + incoming.taken, bytes);
      } else if (!incoming.receive->given_up && incoming.receive->bytes == incoming.header.bytes) {
        copy_out(ring, position, static_cast<std::byte*>(incoming.receive->data) + incoming.taken, bytes);
      }
    }
    incoming.taken += bytes;
    const bool complete = incoming.taken == incoming.header.bytes;
    position += complete ? padded(bytes) : bytes;
    ring.read.store(position, std::memory_order_release);
    if (complete) {
      end_message(incoming);
      completed = true;
    }
    return true;
  }

  /// The first receive of the message's tag that was not given up, taken off the slot.
  static std::shared_ptr<PostedReceive> next_receive(Incoming& incoming) {
    const auto slot = incoming.slots.find(incoming.header.tag);
    if (slot == incoming.slots.end()) return nullptr;
    std::shared_ptr<PostedReceive> receive;
    while (!slot->second.receives.empty() && receive == nullptr) {
      if (!slot->second.receives.front()->given_up) receive = slot->second.receives.front();
      slot->second.receives.pop_front();
    }
    erase_if_empty(incoming, incoming.header.tag);
    return receive;
  }

  static void begin_message(Incoming& incoming) {
    incoming.in_message = true;
    incoming.taken = 0;
    incoming.receive = next_receive(incoming);
    if (incoming.receive == nullptr) {
      const std::size_t bytes = incoming.header.bytes;
      incoming.message = {.data = std::make_unique_for_overwrite<std::byte[]>(bytes), .bytes = bytes};
    }
  }

  static void end_message(Incoming& incoming) {
    incoming.in_message = false;
    if (incoming.receive != nullptr) {
      incoming.receive->sent_bytes = incoming.header.bytes;
      incoming.receive->done = true;
      incoming.receive.reset();
    } else if (const auto receive = next_receive(incoming)) {  // it was started while the message came
      deliver(*receive, incoming.message);
      incoming.message = {};
    } else {
      incoming.slots[incoming.header.tag].messages.push_back(std::move(incoming.message));
    }
  }

  void write_message(const void* data, std::size_t bytes, int place, std::uint32_t tag) {
    SharedSegment::Ring& ring = segment_->ring(self_, place);
    std::lock_guard whole_message(outgoing_[place]);
    {
      std::lock_guard lock(mutex_);
      check_alive();
    }
    std::uint64_t position = ring.written.load(std::memory_order_relaxed);
    const auto space = [&] { return ring_bytes - (position - ring.read.load(std::memory_order_acquire)); };
    if (space() < sizeof(MessageHeader)) wait_until([&] { return space() >= sizeof(MessageHeader); }, place);
    const MessageHeader header{.bytes = bytes, .tag = tag, .unused = 0};
    copy_in(ring, position, &header, sizeof(header));
    position += sizeof(header);
    // The header shows together with the first piece, or alone where there is no room for one.
    std::size_t written = 0;
    do {
      const std::size_t piece = std::min(piece_bytes, bytes - written);
      if (space() < padded(piece)) {
        ring.written.store(position, std::memory_order_release);
        segment_->ring_doorbell(place);
        try {
          wait_until([&] { return space() >= padded(piece); }, place);
        } catch (const Error& error) {  // half a message is in the ring: nothing can follow it
          abort(error.what());
          throw;
        }
      }
      if (piece > 0) copy_in(ring, position, static_cast<const std::byte*>(data) + written, piece);
      written += piece;
      position += padded(piece);
      ring.written.store(position, std::memory_order_release);
      segment_->ring_doorbell(place);
    } while (written < bytes);
  }

  std::shared_ptr<Transport> network_;
  std::unique_ptr<SharedSegment> segment_;
  std::vector<int> local_ranks_;  ///< by place
  std::vector<int> place_;        ///< of each rank in the segment, -1 elsewhere
  milliseconds timeout_;
  int self_ = 0;
  bool spins_ = false;

  std::mutex mutex_;  ///< guards the following
  std::vector<Incoming> incoming_;
  bool aborted_ = false;
  bool ending_ = false;
  std::string reason_;

  std::vector<std::mutex> outgoing_;  ///< by place: one message at a time
  std::thread receiver_;              ///< runs where there are ranks on other machines
};

/// What the ranks tell each other: where they are, and whether what was tried has worked.
struct Card {
  char identity[160] = {};
  SharedSegment::Handle handle;
  std::int64_t works = 0;
};

std::vector<Card> exchange(Transport& network, const Card& own) {
  std::vector<int> ranks(network.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Card> cards(network.size());
  cards[network.rank()] = own;
  constexpr std::uint32_t bootstrap_tag = 1;  // of group 0, which is kept for such purposes
  all_gather_ring({network, ranks, network.rank(), bootstrap_tag}, cards.data(),
                  std::vector<std::size_t>(network.size(), sizeof(Card)));
  return cards;
}

}  // namespace

std::shared_ptr<Transport> share_memory(std::shared_ptr<Transport> network, milliseconds timeout) {
  if (network->size() == 1) return network;
  const int self = network->rank();
  Card own;
  const std::string identity = network_identity();
  std::strncpy(own.identity, identity.c_str(), sizeof(own.identity) - 1);
  std::vector<Card> cards = exchange(*network, own);
  std::vector<int> local_ranks;
  for (int rank = 0; rank < network->size(); ++rank) {
    if (std::strcmp(cards[rank].identity, own.identity) == 0) local_ranks.push_back(rank);
  }
  const int ranks = static_cast<int>(local_ranks.size());
  const int place = static_cast<int>(std::find(local_ranks.begin(), local_ranks.end(), self) - local_ranks.begin());

  std::unique_ptr<SharedSegment> segment;
  if (place == 0 && ranks > 1) segment = SharedSegment::create(ranks);
  if (segment != nullptr) own.handle = segment->handle();
  cards = exchange(*network, own);
  if (place != 0) segment = SharedSegment::open(cards[local_ranks[0]].handle, ranks);
  own.works = segment != nullptr && segment->enter(place);
  cards = exchange(*network, own);
  for (const int rank : local_ranks) {
    if (cards[rank].works == 0) return network;
  }
  return std::make_shared<SharedMemoryTransport>(std::move(network), std::move(segment), std::move(local_ranks),
                                                 timeout);
}

}  // namespace paceline
