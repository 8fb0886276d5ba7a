#include "paceline/comm/gloo_communicator.h"

// c10d's headers include all of ATen, which the guard of the other files forbids.
#undef AT_PER_OPERATOR_HEADERS
#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif

#include "paceline/base/error.h"
#include "paceline/comm/communication_thread.h"
#include "paceline/comm/network_address.h"

#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace paceline {
namespace {

using std::chrono::milliseconds;

std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

/// Gloo's texts name a source line and a port; what they say about the peer is this.
std::string explain(const std::exception& error, int peer, milliseconds timeout) {
  const std::string text = first_line(error);
  for (const std::string_view sign : {"closed by peer", "reset by peer", "Broken pipe", "Connection refused"}) {
    if (text.find(sign) != std::string::npos) return fmt::format("rank {} is gone (connection closed)", peer);
  }
  if (text.find("Timed out") != std::string::npos) {
    return fmt::format("rank {} did not answer for {} s", peer, timeout.count() / 1000.0);
  }
  return fmt::format("connection to rank {} failed: {}", peer, text);
}

class DoneWork : public Work {
 public:
  void wait() override {}
};

class GlooTransport : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::ProcessGroupGloo> group,
                milliseconds timeout)
      : store_(std::move(store)),
        group_(std::move(group)),
        rank_(group_->getRank()),
        size_(group_->getSize()),
        timeout_(timeout) {}

  ~GlooTransport() override {
    std::unique_lock lock(mutex_);
    if (!sends_changed_.wait_for(lock, std::chrono::seconds(5), [&] { return unfinished_sends_ == 0; })) {
      lock.unlock();
      abort("the rank has ended its communication");
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    if (bytes == 0) return check_alive();
    auto copy = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(copy->data(), data, bytes);
    std::shared_ptr<Work> work = send_start(copy->data(), bytes, peer, tag);
    {
      std::lock_guard lock(mutex_);
      ++unfinished_sends_;
    }
    sender_.post([this, copy, work, peer]() mutable {
      try {
        work->wait();
      } catch (const std::exception& error) {
        abort(fmt::format("send to rank {}: {}", peer, error.what()));
      }
      work.reset();
      std::lock_guard lock(mutex_);
      --unfinished_sends_;
      sends_changed_.notify_all();
    });
  }

  std::unique_ptr<Work> send_start(const void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    return start(const_cast<void*>(data), bytes, peer, [&](std::vector<at::Tensor>& tensors) {
      return group_->send(tensors, peer, static_cast<int>(tag));
    });
  }

  std::unique_ptr<Work> receive_start(void* data, std::size_t bytes, int peer, std::uint32_t tag) override {
    return start(data, bytes, peer, [&](std::vector<at::Tensor>& tensors) {
      return group_->recv(tensors, peer, static_cast<int>(tag));
    });
  }

  void abort(const std::string& reason) override {
    std::lock_guard lock(mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
    for (c10d::Work* work : pending_) work->abort();
  }

 private:
  class PendingWork : public Work {
   public:
    PendingWork(GlooTransport& transport, c10::intrusive_ptr<c10d::Work> work, int peer)
        : transport_(transport), work_(std::move(work)), peer_(peer) {
      std::lock_guard lock(transport_.mutex_);
      transport_.pending_.insert(work_.get());
      if (transport_.aborted_) work_->abort();
    }
    ~PendingWork() override {
      std::lock_guard lock(transport_.mutex_);
      transport_.pending_.erase(work_.get());
    }

    void wait() override {
      bool complete = false;
      try {
        complete = work_->wait(transport_.timeout_);
      } catch (const std::exception& error) {
        transport_.check_alive();
        fail("{}", explain(error, peer_, transport_.timeout_));
      }
      if (!complete) transport_.check_alive();
      PACELINE_CHECK(complete);
    }

   private:
    GlooTransport& transport_;
    c10::intrusive_ptr<c10d::Work> work_;
    int peer_;
  };

  template <typename F>
  std::unique_ptr<Work> start(void* data, std::size_t bytes, int peer, const F& begin) {
    check_alive();
    if (bytes == 0) return std::make_unique<DoneWork>();
    std::vector<at::Tensor> tensors{at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte)};
    try {
      return std::make_unique<PendingWork>(*this, begin(tensors), peer);
    } catch (const std::exception& error) {
      fail("{}", explain(error, peer, timeout_));
    }
  }

  void check_alive() {
    std::lock_guard lock(mutex_);
    if (aborted_) fail("communication aborted: {}", reason_);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int rank_;
  int size_;
  milliseconds timeout_;

  std::mutex mutex_;
  std::condition_variable sends_changed_;
  std::unordered_set<c10d::Work*> pending_;
  int unfinished_sends_ = 0;
  bool aborted_ = false;
  std::string reason_;
  CommunicationThread sender_;  ///< waits for the sends that nobody else waits for
};

std::string rank_key(const GlooOptions& options, int rank) {
  return fmt::format("paceline/{}/rank/{}", options.run_id, rank);
}

/// The ranks that have not come to the store.
std::vector<int> missing_ranks(c10d::Store& store, const GlooOptions& options) {
  std::vector<int> missing;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (!store.check({rank_key(options, rank)})) missing.push_back(rank);
  }
  return missing;
}

std::string text_of(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

c10::intrusive_ptr<c10d::Store> open_store(const GlooOptions& options) {
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(options.master_port);
  store_options.waitWorkers = false;
  store_options.timeout = options.connect_timeout;
  std::string address = options.master_address;
  require_resolvable(address);
  if (options.rank == 0 && !options.launcher_hosts_store) {
    ListeningSocket socket = options.listening_descriptor >= 0
                                 ? ListeningSocket(options.listening_descriptor)
                                 : listen_as_master(options.master_address, options.master_port);
    store_options.isServer = true;
    store_options.port = static_cast<std::uint16_t>(socket.port());
    store_options.masterListenFd = socket.release();
    if (!is_loopback(address)) address = "localhost";
  } else {
    wait_for_master(options.master_address, options.master_port, options.connect_timeout);
  }
  // A stranger that accepts and says nothing would be listened to without a limit: that is left to a thread of its own.
  using Store = c10::intrusive_ptr<c10d::Store>;
  std::packaged_task<Store()> connect([address, store_options] {
    return Store(c10::make_intrusive<c10d::TCPStore>(address, store_options));
  });
  std::future<Store> store = connect.get_future();
  std::thread(std::move(connect)).detach();
  const auto refuse_stranger = [&](const std::string& reason) {
    fail("what listens at MASTER_ADDR='{}', MASTER_PORT={} is not rank 0 of a run: {}", options.master_address,
         options.master_port, reason);
  };
  if (store.wait_for(options.connect_timeout) != std::future_status::ready) refuse_stranger("it does not answer");
  try {
    return store.get();
  } catch (const std::exception& error) {
    refuse_stranger(first_line(error));
  }
  return {};
}

/// Refuses a store of another run, and two processes with one rank.
void introduce(c10d::Store& store, const GlooOptions& options) {
  if (!options.launcher_hosts_store) {
    if (options.rank == 0) store.set("paceline/run", bytes_of(options.run_id));
    const std::string run = text_of(store.get("paceline/run"));
    if (run != options.run_id) {
      fail("MASTER_ADDR='{}', MASTER_PORT={} belongs to another run ('{}', not '{}'): set another port",
           options.master_address, options.master_port, run, options.run_id);
    }
  }
  if (store.add(rank_key(options, options.rank), 1) > 1) {
    fail("two processes of run '{}' say that they are rank {}", options.run_id, options.rank);
  }
}

/// The address that the other ranks reach this one at. Where the master's name is an alias of the loopback, as it often
/// is on the master itself, and there are ranks on other machines, it is the address on the route to one of those.
std::string choose_address(c10d::Store& store, const GlooOptions& options) {
  const std::string address = source_address_towards(options.master_address, options.master_port);
  const std::string identity = network_identity();
  const auto key = [](int rank) { return "address/" + std::to_string(rank); };
  store.set(key(options.rank), bytes_of(identity + " " + address));
  if (!is_loopback(address)) return address;
  for (int peer = 0; peer < options.world_size; ++peer) {
    const std::string entry = text_of(store.get(key(peer)));
    const std::size_t space = entry.rfind(' ');
    const std::string peer_address = entry.substr(space + 1);
    if (entry.substr(0, space) == identity) continue;
    if (is_loopback(peer_address)) {
      fail("rank {} on another machine takes MASTER_ADDR='{}' for itself ({}): give an address that all machines share",
           peer, options.master_address, peer_address);
    }
    return source_address_towards(peer_address, options.master_port);
  }
  return address;
}

}  // namespace

std::shared_ptr<Transport> connect_gloo(const GlooOptions& options) {
  PACELINE_CHECK(options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size);
  std::vector<std::string> interfaces;
  if (const char* value = std::getenv("GLOO_SOCKET_IFNAME")) interfaces = parse_interfaces(value);
  // What c10d logs about a failed connection is pages of stack frames beside our one line. Its own variable shows them.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  const c10::intrusive_ptr<c10d::Store> root = open_store(options);
  try {
    introduce(*root, options);
    const auto store = c10::make_intrusive<c10d::PrefixStore>("paceline/" + options.run_id, root);
    auto group_options = c10d::ProcessGroupGloo::Options::create(options.connect_timeout);
    group_options->threads = 1;
    if (interfaces.empty()) {
      group_options->devices.push_back(
          c10d::ProcessGroupGloo::createDeviceForHostname(choose_address(*store, options)));
    }
    for (const std::string& name : interfaces) {
      group_options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
    auto group =
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.world_size, group_options);
    group->setTimeout(options.timeout);
    // Nobody goes on, or ends the store, before all have read what they need from it.
    root->barrier("paceline/" + options.run_id + "/connected", options.world_size, options.connect_timeout);
    return std::make_shared<GlooTransport>(root, std::move(group), options.timeout);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::vector<int> missing;
    try {
      missing = missing_ranks(*root, options);
    } catch (const std::exception&) {
      fail("rank {} could not join run '{}': rank 0, which hosts the store, is gone", options.rank, options.run_id);
    }
    if (!missing.empty()) {
      fail("rank{} {} of run '{}' did not come within {} s", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "),
           options.run_id, options.connect_timeout.count() / 1000.0);
    }
    fail("rank {} could not join the {} ranks of run '{}': {}", options.rank, options.world_size, options.run_id,
         first_line(error));
  }
}

}  // namespace paceline
