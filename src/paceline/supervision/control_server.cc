#include "paceline/supervision/control_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "paceline/base/error.h"
#include "paceline/supervision/control_message.h"

namespace paceline {
namespace {

constexpr double handshake_s = 3;       // a stranger that says nothing for so long is dropped
constexpr std::size_t strangers = 64;   // at once; the oldest is dropped for the next
constexpr double settle_s = 0.3;        // other events of the same moment may still arrive
constexpr double lost_settle_s = 1;     // and a launcher's knowledge of why a connection ended
constexpr double host_delay_s = 1.5;    // for the others to hear the end before the server's own process leaves
constexpr double pause_s = 2;           // a longer gap between two calls of serve(): this process itself stood still
constexpr std::size_t table_limit = 8 << 20;

/// Compares in a time that does not tell how much was right.
bool same_secret(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

ControlServer::ControlServer(ControlServerOptions options) : options_(std::move(options)), ranks_(options_.world_size) {
  PACELINE_CHECK(options_.world_size >= 1 && options_.run_id.size() >= 8);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (::inet_pton(AF_INET, options_.bind_address.c_str(), &address.sin_addr) != 1) {
    fail("cannot listen on '{}': not a numeric IPv4 address", options_.bind_address);
  }
  listener_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener_.valid() || ::bind(listener_.get(), generic, length) != 0 || ::listen(listener_.get(), 1024) != 0 ||
      ::getsockname(listener_.get(), generic, &length) != 0) {
    fail("cannot listen on {} for the ranks' control connections: {}", options_.bind_address, std::strerror(errno));
  }
  address_ = fmt::format("{}:{}", options_.bind_address, ntohs(address.sin_port));
  events_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.fd = listener_.get()}};
  if (!events_.valid() || ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) {
    fail("cannot watch control connections: {}", std::strerror(errno));
  }
  last_serve_ = last_beat_ = monotonic_seconds();
  for (RankState& rank : ranks_) rank.last_heard = rank.last_progress = last_serve_;
}

ControlServer::~ControlServer() = default;

std::string ControlServer::rank_name(int rank) const {
  const RankState& state = ranks_[rank];
  if (state.pid == 0) return fmt::format("rank {}", rank);
  const bool several_hosts = std::any_of(ranks_.begin(), ranks_.end(), [&](const RankState& other) {
    return !other.host.empty() && !state.host.empty() && other.host != state.host;
  });
  return several_hosts ? fmt::format("rank {} (pid {} on {})", rank, state.pid, state.host)
                       : fmt::format("rank {} (pid {})", rank, state.pid);
}

void ControlServer::serve() {
  const double now = monotonic_seconds();
  if (const double gap = now - last_serve_; gap > pause_s) {
    for (RankState& rank : ranks_) {
      rank.last_heard += gap;
      rank.last_progress += gap;
    }
  }
  last_serve_ = now;

  std::array<epoll_event, 64> ready;
  for (int round = 0; round < 16; ++round) {
    const int count = ::epoll_wait(events_.get(), ready.data(), ready.size(), 0);
    if (count <= 0) break;
    for (int i = 0; i < count; ++i) {
      const int descriptor = ready[i].data.fd;
      if (descriptor == listener_.get()) {
        accept_all();
      } else if (peers_.contains(descriptor)) {
        if (ready[i].events & EPOLLOUT) {
          Peer& peer = peers_.at(descriptor);
          peer.connection->flush();  // a broken one is seen by read()
          watch_writable(peer);
        }
        if (ready[i].events & ~static_cast<unsigned>(EPOLLOUT)) read(descriptor);
      }
    }
  }

  std::vector<int> late;
  for (const auto& [descriptor, peer] : peers_) {
    if (peer.rank < 0 && now - peer.since > handshake_s) late.push_back(descriptor);
  }
  for (const int descriptor : late) drop(descriptor);

  if (now - last_beat_ >= 1) {
    last_beat_ = now;
    for (auto& [descriptor, peer] : peers_) {
      if (peer.rank >= 0) send(peer, R"({"type":"beat"})");
    }
  }
  if (end_ && !host_told_ && options_.host_rank >= 0) {
    const auto host = members_.find(options_.host_rank);
    if (others_gone() || now - end_time_ > host_delay_s) {
      host_told_ = true;
      if (host != members_.end()) send(peers_.at(host->second), end_message());
    }
  }
  if (!end_) watch_ranks(now);
}

void ControlServer::accept_all() {
  while (true) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    if (peers_.size() - members_.size() >= strangers) {
      int oldest = -1;
      for (const auto& [descriptor, peer] : peers_) {
        if (peer.rank < 0 && (oldest < 0 || peer.since < peers_.at(oldest).since)) oldest = descriptor;
      }
      drop(oldest);
    }
    const int descriptor = socket.get();
    Peer peer{std::make_unique<ControlConnection>(std::move(socket)), -1, monotonic_seconds(), {}};
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) peers_.emplace(descriptor, std::move(peer));
  }
}

void ControlServer::read(int descriptor) {
  Peer& peer = peers_.at(descriptor);
  std::vector<std::string> messages;
  const bool open = peer.connection->receive(messages);
  for (const std::string& message : messages) {
    if (!(peer.rank < 0 ? handshake(peer, message) : handle(peer, message))) {
      drop(descriptor);
      return;
    }
  }
  if (!open) drop(descriptor);
}

bool ControlServer::handshake(Peer& peer, const std::string& text) {
  const auto message = parse_message(text);
  if (text_of(message, "type", 16) != "hello") return false;
  if (!same_secret(text_of(message, "run", 256), options_.run_id)) {
    peer.connection->send(R"({"type":"refused","why":"it belongs to another run"})");
    return false;
  }
  const std::int64_t rank = number_of(message, "rank", -1);
  if (rank < 0 || rank >= options_.world_size) {
    peer.connection->send(R"({"type":"refused","why":"the run has no such rank"})");
    return false;
  }
  RankState& state = ranks_[rank];
  if (state.joined) {
    peer.connection->send(R"({"type":"refused","why":"another process already is this rank"})");
    return false;
  }
  peer.rank = static_cast<int>(rank);
  peer.connection->trust();
  members_[peer.rank] = peer.connection->descriptor();
  state.joined = true;
  state.pid = number_of(message, "pid", 0);
  state.host = one_line(text_of(message, "host", 64));
  state.last_heard = state.last_progress = monotonic_seconds();
  send(peer, write_message({{"type", "welcome"}, {"server", options_.name}}));
  if (stop_) send(peer, stop_message());
  if (end_ && peer.rank != options_.host_rank) send(peer, end_message());
  return true;
}

bool ControlServer::handle(Peer& peer, const std::string& text) {
  const auto message = parse_message(text);
  RankState& state = ranks_[peer.rank];
  const double now = monotonic_seconds();
  const std::string type = text_of(message, "type", 16);
  state.last_heard = now;
  if (type == "beat") {
    const auto progress = static_cast<std::uint64_t>(number_of(message, "progress", 0));
    if (progress != state.progress) state.last_progress = now;
    state.progress = progress;
    state.activity = one_line(text_of(message, "doing", 128));
    state.waiting_for = static_cast<int>(number_of(message, "waiting", -1));
  } else if (type == "publish") {
    const std::string key = text_of(message, "key", 128), value = text_of(message, "value", 4096);
    table_bytes_ += key.size() + value.size();
    if (table_bytes_ > table_limit) return false;
    table_[key] = value;
    answer_waits(key);
  } else if (type == "wait") {
    const std::string key = text_of(message, "key", 128);
    if (peer.waits.size() >= 64) return false;
    peer.waits.push_back(key);
    if (table_.contains(key)) answer_waits(key);
  } else if (type == "stop") {
    const auto cause = number_of(message, "cause", 0);
    if (cause < 1 || cause > 3) return false;
    const auto at_rank = fmt::format("{} at rank {}", one_line(text_of(message, "reason", 256)), peer.rank);
    if (!stop_asked_) stop_asked_.emplace(static_cast<StopCause>(cause), at_rank);
  } else if (type == "failure") {
    const std::int64_t blamed = number_of(message, "blamed", -1);
    const bool blames = blamed >= 0 && blamed < options_.world_size && blamed != peer.rank;
    add_failure(RankFailure::Kind::reported, peer.rank, "failed: " + one_line(text_of(message, "message", 2048)),
        blames);
  } else if (type == "finished") {
    state.finished = true;
    send(peer, R"({"type":"goodbye"})");
  } else {
    return false;
  }
  return true;
}

void ControlServer::answer_waits(const std::string& key) {
  const std::string answer = write_message({{"type", "value"}, {"key", key}, {"value", table_.at(key)}});
  for (auto& [descriptor, peer] : peers_) {
    if (std::erase(peer.waits, key) > 0) send(peer, answer);
  }
}

void ControlServer::send(Peer& peer, const std::string& message) {
  // A broken connection is seen, and dropped, by the next read.
  peer.connection->send(message);
  watch_writable(peer);
}

void ControlServer::watch_writable(Peer& peer) {
  const int descriptor = peer.connection->descriptor();
  epoll_event event{.events = EPOLLIN | (peer.connection->has_unsent() ? EPOLLOUT : 0U), .data = {.fd = descriptor}};
  ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, descriptor, &event);
}

void ControlServer::drop(int descriptor) {
  const auto found = peers_.find(descriptor);
  if (found == peers_.end()) return;
  const int rank = found->second.rank;
  peers_.erase(found);
  if (rank < 0) return;
  members_.erase(rank);
  if (!ranks_[rank].finished) add_failure(RankFailure::Kind::lost, rank, "is gone: its connection closed");
}

void ControlServer::add_failure(RankFailure::Kind kind, int rank, const std::string& what, bool blames) {
  RankState& state = ranks_[rank];
  // One event a rank. A rank that blamed another one and then left stays an accuser.
  if (state.failed || end_) return;
  state.failed = true;
  failures_.push_back({{kind, rank, rank_name(rank) + " " + what}, monotonic_seconds(), blames});
}

void ControlServer::note_exit(int rank, std::int64_t pid, const std::string& how) {
  RankState& state = ranks_.at(rank);
  if (state.pid == 0) state.pid = pid;
  if (how.empty() && stop_) {
    // It was asked to leave and left.
    state.finished = true;
    std::erase_if(failures_, [&](const Event& event) { return event.failure.rank == rank; });
    return;
  }
  const bool left_early = how.empty() && state.joined && !state.finished;
  if (how.empty() && !left_early) {
    state.finished = true;
    return;
  }
  const std::string what = "is gone: " + (left_early ? "it left before the run was finished" : how);
  const auto lost = std::find_if(failures_.begin(), failures_.end(), [&](const Event& event) {
    return event.failure.rank == rank && event.failure.kind == RankFailure::Kind::lost;
  });
  if (lost != failures_.end()) {
    lost->failure = {RankFailure::Kind::exited, rank, rank_name(rank) + " " + what};
  } else {
    add_failure(RankFailure::Kind::exited, rank, what);
  }
}

void ControlServer::watch_ranks(double now) {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const RankState& state = ranks_[rank];
    if (state.joined && !state.finished && !state.failed && now - state.last_heard > options_.silence_s) {
      add_failure(RankFailure::Kind::silent, rank,
                  fmt::format("hangs: no heartbeat for {:.3g} s (last in {})", options_.silence_s,
                              state.activity.empty() ? "start" : state.activity));
    }
  }
  int culprit = -1, first_waiting = -1;
  bool all_wait = true;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const RankState& state = ranks_[rank];
    if (state.finished) continue;
    const bool stalled = state.joined && now - state.last_progress > options_.hang_timeout_s;
    const bool waits = state.waiting_for != -1;
    if (!stalled || !waits) all_wait = false;
    int& earliest = waits ? first_waiting : culprit;
    const bool earlier = earliest < 0 || state.last_progress < ranks_[earliest].last_progress;
    if (stalled && !state.failed && earlier) earliest = rank;
  }
  if (culprit >= 0) {
    add_failure(RankFailure::Kind::stalled, culprit,
                fmt::format("hangs: no progress for {:.3g} s in {}", options_.hang_timeout_s,
                    ranks_[culprit].activity));
  } else if (first_waiting >= 0 && all_wait) {
    std::string who;
    int named = 0;
    for (int rank = 0; rank < options_.world_size && named < 4; ++rank) {
      const RankState& state = ranks_[rank];
      if (state.finished) continue;
      const std::string peer = state.waiting_for >= 0 ? fmt::format("rank {}", state.waiting_for) : "its peers";
      who += fmt::format("{}rank {} for {} in {}", named++ ? "; " : "", rank, peer, state.activity);
    }
    if (!ranks_[first_waiting].failed) {
      add_failure(RankFailure::Kind::deadlock, first_waiting, "");
      failures_.back().failure.reason =
          fmt::format("no rank makes progress for {:.3g} s and all wait: {}", options_.hang_timeout_s, who);
    }
  }
}

std::optional<RankFailure> ControlServer::first_failure() {
  if (first_ || failures_.empty()) return first_;
  const double now = monotonic_seconds();
  const auto culprit = std::find_if(failures_.begin(), failures_.end(),
      [](const Event& event) { return !event.blames; });
  if (culprit != failures_.end()) {
    const bool launcher_knows = culprit->failure.kind == RankFailure::Kind::lost && options_.host_rank < 0;
    if (now - culprit->time >= (launcher_knows ? lost_settle_s : settle_s)) first_ = culprit->failure;
  } else if (now - failures_.front().time >= options_.silence_s + settle_s) {
    // Nobody else has died or fallen silent: the accuser's own word is all there is.
    first_ = failures_.front().failure;
  }
  return first_;
}

bool ControlServer::all_finished() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) { return rank.finished; });
}

double ControlServer::seconds_without_progress(int rank) const {
  return monotonic_seconds() - ranks_.at(rank).last_progress;
}

void ControlServer::stop_all(StopCause cause, const std::string& reason) {
  if (stop_) return;
  stop_.emplace(cause, one_line(reason));
  const std::string message = stop_message();
  for (auto& [descriptor, peer] : peers_) {
    if (peer.rank >= 0) send(peer, message);
  }
}

std::string ControlServer::stop_message() const {
  const auto& [cause, reason] = *stop_;
  return write_message({{"type", "stop"}, {"cause", static_cast<int>(cause)}, {"reason", reason}});
}

std::string ControlServer::end_message() const {
  return write_message({{"type", "end"}, {"reason", end_->first}, {"code", end_->second}});
}

void ControlServer::end_all(const std::string& reason, int code) {
  if (end_) return;
  end_.emplace(one_line(reason), code);
  end_time_ = monotonic_seconds();
  for (auto& [descriptor, peer] : peers_) {
    if (peer.rank >= 0 && peer.rank != options_.host_rank) send(peer, end_message());
  }
}

}  // namespace paceline
