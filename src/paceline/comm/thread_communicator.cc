#include "paceline/comm/thread_communicator.h"

#include "paceline/base/error.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace paceline {
namespace {

/// A receive that was started before its message came. Its fields are guarded by the mutex of the inbox.
struct PostedReceive {
  void* data;
  std::size_t bytes;
  enum class Status { waiting, filling, filled, mismatched, abandoned } status = Status::waiting;
  std::size_t sent_bytes = 0;
};

struct Message {
  std::unique_ptr<std::byte[]> data;
  std::size_t bytes;
};

struct Slot {
  std::deque<Message> messages;
  std::deque<std::shared_ptr<PostedReceive>> receives;
};

/// What one rank is sent. Slots by sender and tag.
struct Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::uint64_t, Slot> slots;
  bool aborted = false;
  std::string reason;

  static std::uint64_t key(int sender, std::uint32_t tag) {
    return static_cast<std::uint64_t>(sender) << 32 | tag;
  }
  void erase_if_empty(std::uint64_t key) {
    const auto slot = slots.find(key);
    if (slot->second.messages.empty() && slot->second.receives.empty()) slots.erase(slot);
  }
  void check_alive() const {
    if (aborted) fail("communication aborted: {}", reason);
  }
};

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

[[noreturn]] void fail_mismatch(int sender, std::size_t sent, int receiver, std::size_t expected) {
  fail("rank {} sent {} bytes where rank {} expects {}: their tensors differ in shape or type", sender, sent, receiver,
       expected);
}

class SentWork : public Work {
 public:
  void wait() override {}
};

class ReceiveWork : public Work {
 public:
  ReceiveWork(Inbox& inbox, std::shared_ptr<PostedReceive> receive, int sender, int receiver,
              std::chrono::milliseconds timeout)
      : inbox_(inbox), receive_(std::move(receive)), sender_(sender), receiver_(receiver), timeout_(timeout) {}

  ~ReceiveWork() override {
    std::unique_lock lock(inbox_.mutex);
    inbox_.changed.wait(lock, [&] { return receive_->status != PostedReceive::Status::filling; });
    if (receive_->status == PostedReceive::Status::waiting) receive_->status = PostedReceive::Status::abandoned;
  }

  void wait() override {
    using Status = PostedReceive::Status;
    std::unique_lock lock(inbox_.mutex);
    const bool settled = inbox_.changed.wait_for(lock, timeout_, [&] {
      return receive_->status > Status::filling || (inbox_.aborted && receive_->status == Status::waiting);
    });
    if (receive_->status == Status::filled) return;
    if (receive_->status == Status::mismatched) {
      fail_mismatch(sender_, receive_->sent_bytes, receiver_, receive_->bytes);
    }
    inbox_.check_alive();
    PACELINE_CHECK(!settled);
    fail("rank {} waited {} s for a message of rank {} that did not come", receiver_, timeout_.count() / 1000.0,
         sender_);
  }

 private:
  Inbox& inbox_;
  std::shared_ptr<PostedReceive> receive_;
  int sender_;
  int receiver_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

struct Hub::State {
  State(int size, std::chrono::milliseconds limit) : inboxes(size), timeout(limit) {}

  void abort(const std::string& reason) {
    for (Inbox& inbox : inboxes) {
      std::lock_guard lock(inbox.mutex);
      if (!inbox.aborted) inbox.reason = reason;
      inbox.aborted = true;
      inbox.changed.notify_all();
    }
  }

  std::vector<Inbox> inboxes;
  std::chrono::milliseconds timeout;
};

class Hub::RankTransport : public Transport {
 public:
  RankTransport(std::shared_ptr<State> state, int rank) : state_(std::move(state)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(state_->inboxes.size()); }

  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    Inbox& inbox = state_->inboxes.at(peer);
    std::unique_lock lock(inbox.mutex);
    inbox.check_alive();
    const std::uint64_t key = Inbox::key(rank_, tag);
    Slot& slot = inbox.slots[key];
    std::shared_ptr<PostedReceive> receive;
    while (!slot.receives.empty() && receive == nullptr) {
      if (slot.receives.front()->status == PostedReceive::Status::waiting) receive = slot.receives.front();
      slot.receives.pop_front();
    }
    if (receive == nullptr) {
      Message message{std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
      copy_bytes(message.data.get(), data, bytes);
      slot.messages.push_back(std::move(message));
      return;
    }
    inbox.erase_if_empty(key);
    if (receive->bytes != bytes) {
      receive->status = PostedReceive::Status::mismatched;
      receive->sent_bytes = bytes;
      inbox.changed.notify_all();
      fail_mismatch(rank_, bytes, peer, receive->bytes);
    }
    receive->status = PostedReceive::Status::filling;
    lock.unlock();
    copy_bytes(receive->data, data, bytes);
    lock.lock();
    receive->status = PostedReceive::Status::filled;
    inbox.changed.notify_all();
  }

  std::unique_ptr<Work> send_start(const void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    send(data, bytes, peer, tag);
    return std::make_unique<SentWork>();
  }

  std::unique_ptr<Work> receive_start(void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    Inbox& inbox = state_->inboxes.at(rank_);
    auto receive = std::make_shared<PostedReceive>(PostedReceive{.data = data, .bytes = bytes});
    std::unique_lock lock(inbox.mutex);
    inbox.check_alive();
    const std::uint64_t key = Inbox::key(peer, tag);
    Slot& slot = inbox.slots[key];
    if (slot.messages.empty()) {
      slot.receives.push_back(receive);
    } else {
      Message message = std::move(slot.messages.front());
      slot.messages.pop_front();
      inbox.erase_if_empty(key);
      lock.unlock();
      if (message.bytes != bytes) fail_mismatch(peer, message.bytes, rank_, bytes);
      copy_bytes(data, message.data.get(), bytes);
      receive->status = PostedReceive::Status::filled;
    }
    return std::make_unique<ReceiveWork>(inbox, std::move(receive), peer, rank_, state_->timeout);
  }

  void abort(const std::string& reason) override { state_->abort(reason); }

 private:
  std::shared_ptr<State> state_;
  int rank_;
};

Hub::Hub(int size, std::chrono::milliseconds timeout) : state_(std::make_shared<State>(size, timeout)) {
  PACELINE_CHECK(size >= 1);
}

Hub::~Hub() = default;

int Hub::size() const { return static_cast<int>(state_->inboxes.size()); }

std::shared_ptr<Transport> Hub::transport(int rank) {
  PACELINE_CHECK(rank >= 0 && rank < size());
  return std::make_shared<RankTransport>(state_, rank);
}

void Hub::abort(const std::string& reason) { state_->abort(reason); }

void run_ranks(int size, const std::function<void(int rank, Hub& hub)>& body) {
  Hub hub(size);
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(std::max(1, cores / size));
        body(rank, hub);
      } catch (...) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        hub.abort(fmt::format("rank {} failed", rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace paceline
