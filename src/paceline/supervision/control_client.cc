#include "paceline/supervision/control_client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "paceline/base/error.h"
#include "paceline/supervision/control_message.h"

namespace paceline {
namespace {

constexpr double connect_s = 10;
constexpr double pause_s = 2;  // a longer gap in the thread's loop: this process itself stood still
constexpr auto flush_time = std::chrono::seconds(3);
constexpr auto leave_time = std::chrono::seconds(2);

/// Waits until `deadline` for the connection to be ready; false when the time is over.
bool wait_ready(int descriptor, short events, double deadline) {
  while (true) {
    const double left = deadline - monotonic_seconds();
    if (left <= 0) return false;
    pollfd ready{descriptor, events, 0};
    if (::poll(&ready, 1, static_cast<int>(left * 1000) + 1) > 0) return true;
  }
}

Descriptor connect_to(const std::string& address, double deadline) {
  const auto [host, port] = parse_address(address);
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) fail("cannot find the control server {}: {}", address, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) fail("cannot open a socket: {}", std::strerror(errno));
  int trouble = ::connect(socket.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  if (trouble == EINPROGRESS) {
    socklen_t length = sizeof trouble;
    if (!wait_ready(socket.get(), POLLOUT, deadline)) {
      trouble = ETIMEDOUT;
    } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &trouble, &length) != 0) {
      trouble = errno;
    }
  }
  if (trouble != 0) fail("cannot reach the control server at {}: {}", address, std::strerror(trouble));
  return socket;
}

}  // namespace

ControlClient::ControlClient(ControlClientOptions options) : options_(std::move(options)) {
  const double deadline = monotonic_seconds() + connect_s;
  connection_ = std::make_unique<ControlConnection>(connect_to(options_.address, deadline));
  connection_->trust();
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  connection_->send(write_message({{"type", "hello"},
                          {"run", options_.run_id},
                          {"rank", options_.rank},
                          {"pid", static_cast<std::int64_t>(::getpid())},
                          {"host", host.data()}}));
  std::vector<std::string> messages;
  bool open = true;
  while (open && messages.empty()) {
    if (!wait_ready(connection_->descriptor(), POLLIN, deadline)) {
      fail("the control server at {} does not answer rank {} within {} s", options_.address, options_.rank, connect_s);
    }
    open = connection_->receive(messages);
  }
  if (messages.empty()) fail("the control server at {} closed the connection of rank {}", options_.address,
      options_.rank);
  const auto welcome = parse_message(messages.front());
  if (text_of(welcome, "type", 16) != "welcome") {
    fail("the control server at {} refused rank {}: {}", options_.address, options_.rank,
         one_line(text_of(welcome, "why", 256, "it is not one of ours")));
  }
  server_name_ = one_line(text_of(welcome, "server", 128, "the supervisor"));
  wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) fail("cannot create an event: {}", std::strerror(errno));
  thread_ = std::thread([this, rest = std::vector<std::string>(messages.begin() + 1, messages.end())] {
    for (const std::string& message : rest) {
      if (!obey(message)) return;
    }
    run();
  });
}

ControlClient::~ControlClient() {
  {
    const std::lock_guard lock(mutex_);
    leave_ = true;
    changed_.notify_all();
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

std::string ControlClient::beat() const {
  return write_message({{"type", "beat"},
               {"progress", static_cast<std::int64_t>(activity_.progress())},
               {"doing", activity_.text()},
               {"waiting", activity_.waiting_for()}});
}

void ControlClient::run() {
  double now = monotonic_seconds();
  double last_beat = now - options_.beat_s, last_heard = now;
  std::vector<std::string> messages;
  while (true) {
    now = monotonic_seconds();
    bool open = true;
    if (now - last_beat >= options_.beat_s) {
      last_beat = now;
      open = connection_->send(beat());
    }
    {
      const std::lock_guard lock(mutex_);
      while (open && !outgoing_.empty()) {
        open = connection_->send(outgoing_.front());
        outgoing_.pop_front();
      }
      sent_all_ = !connection_->has_unsent();
      if (sent_all_) changed_.notify_all();
      if (leave_ && (sent_all_ || !open)) return;
    }
    std::array<pollfd, 2> ready{
        pollfd{connection_->descriptor(), static_cast<short>(POLLIN | (connection_->has_unsent() ? POLLOUT : 0)), 0},
        pollfd{wake_.get(), POLLIN, 0}};
    const double wait = std::clamp(last_beat + options_.beat_s - monotonic_seconds(), 0.0, 0.25);
    if (::poll(ready.data(), ready.size(), static_cast<int>(wait * 1000) + 1) > 0) {
      std::uint64_t count;
      if (ready[1].revents != 0) [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
      if (ready[0].revents & POLLOUT) open = connection_->flush() && open;
      if (ready[0].revents & ~POLLOUT) {
        messages.clear();
        open = connection_->receive(messages) && open;
        if (!messages.empty()) last_heard = monotonic_seconds();
        for (const std::string& message : messages) {
          if (!obey(message)) return;
        }
      }
    }
    if (const double gap = monotonic_seconds() - now; gap > pause_s) last_heard += gap;
    if (!open) return end(server_name_ + ", which supervises the run, is gone: its connection closed", 1);
    if (monotonic_seconds() - last_heard > options_.silence_s) {
      return end(fmt::format("{}, which supervises the run, hangs: no word for {:.3g} s", server_name_,
          options_.silence_s), 1);
    }
  }
}

/// False when the thread's work is over.
bool ControlClient::obey(const std::string& text) {
  const auto message = parse_message(text);
  const std::string type = text_of(message, "type", 16);
  if (type == "end") {
    end(one_line(text_of(message, "reason", 4096, "the run is over")), static_cast<int>(number_of(message, "code", 1)));
    return false;
  }
  if (type == "stop" && options_.on_stop) {
    options_.on_stop(static_cast<StopCause>(std::clamp<std::int64_t>(number_of(message, "cause", 1), 1, 3)),
                     text_of(message, "reason", 512));
  }
  if (type == "value" || type == "goodbye") {
    const std::lock_guard lock(mutex_);
    if (type == "value") values_[text_of(message, "key", 128)] = text_of(message, "value", 4096);
    if (type == "goodbye") finished_ = true;
    changed_.notify_all();
    return !finished_;
  }
  return true;
}

void ControlClient::end(const std::string& reason, int code) {
  {
    const std::lock_guard lock(mutex_);
    end_reason_ = reason;
    sent_all_ = true;
    changed_.notify_all();
    // Destroyed, or finished: this rank's work is done and its exit code is its own.
    if (leave_ || finishing_) return;
  }
  if (failed_) {
    // It said so itself, and leaves by itself unless its way out hangs.
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, leave_time, [this] { return leave_; })) return;
    ::_exit(code);
  }
  const std::string line = fmt::format("paceline: {}; ending rank {}\n", reason, options_.rank);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  if (options_.on_end) {
    options_.on_end(reason, code);
  } else {
    ::_exit(code);
  }
}

void ControlClient::post(std::string message) {
  {
    const std::lock_guard lock(mutex_);
    outgoing_.push_back(std::move(message));
    sent_all_ = false;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void ControlClient::post_and_flush(std::string message) {
  post(std::move(message));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, flush_time, [this] { return sent_all_; });
}

void ControlClient::publish(const std::string& key, const std::string& value) {
  PACELINE_CHECK(!key.empty() && key.size() <= 128 && value.size() <= 4096);
  post(write_message({{"type", "publish"}, {"key", key}, {"value", value}}));
}

std::string ControlClient::wait_for(const std::string& key, double timeout_s) {
  PACELINE_CHECK(!key.empty() && key.size() <= 128);
  {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
  }
  post(write_message({{"type", "wait"}, {"key", key}}));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                    [&] { return values_.contains(key) || !end_reason_.empty(); });
  if (const auto found = values_.find(key); found != values_.end()) return found->second;
  if (!end_reason_.empty()) fail("rank {} waits for '{}' in vain: {}", options_.rank, key, end_reason_);
  fail("rank {} waited {} s for '{}', which no rank has published", options_.rank, timeout_s, key);
}

Exchange ControlClient::exchange() {
  return {[this](const std::string& key, const std::string& value) { publish(key, value); },
          [this](const std::string& key) { return wait_for(key); }};
}

void ControlClient::request_stop(StopCause cause, const std::string& reason) {
  PACELINE_CHECK(cause != StopCause::none);
  post(write_message({{"type", "stop"}, {"cause", static_cast<int>(cause)}, {"reason", reason.substr(0, 256)}}));
}

void ControlClient::report_failure(const std::string& message, int blamed) {
  if (blamed < 0) failed_ = true;
  post_and_flush(write_message({{"type", "failure"}, {"message", message.substr(0, 2048)}, {"blamed", blamed}}));
}

void ControlClient::finish() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  post(beat());
  post(write_message({{"type", "finished"}}));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, flush_time, [this] { return finished_ || !end_reason_.empty(); });
}

}  // namespace paceline
