#include "paceline/supervision/peer_supervision.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/supervision/run_id.h"

namespace paceline {
namespace {

constexpr double farewell_s = 3;  // for the others to hear why, before rank 0's process leaves
const std::string control_key = "paceline/control";

std::string numeric(const sockaddr* address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
  return text.data();
}

}  // namespace

std::string reachable_address(const std::string& master_addr) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(master_addr.c_str(), nullptr, &hints, &found);
  if (error != 0) fail("cannot resolve MASTER_ADDR={}: {}", master_addr, ::gai_strerror(error));
  const std::string resolved = numeric(found->ai_addr);
  ::freeaddrinfo(found);

  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) fail("cannot list the network interfaces");
  std::vector<std::string> own;
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) && !(entry->ifa_flags & IFF_LOOPBACK)) own.push_back(numeric(entry->ifa_addr));
  }
  ::freeifaddrs(interfaces);
  if (own.empty()) fail("no network interface but the loopback is up: other machines cannot reach rank 0");
  return std::find(own.begin(), own.end(), resolved) != own.end() ? resolved : own.front();
}

RankSupervision::RankSupervision(const LaunchEnvironment& launch, const Exchange& exchange, StopRequest& stop,
                                 SupervisionOptions options, const EnvironmentVariable& variable)
    : stop_(stop) {
  std::string address;
  if (const auto control = variable("PACELINE_CONTROL")) {
    const auto run_id = variable("PACELINE_RUN_ID");
    if (!run_id) refuse("PACELINE_CONTROL={} is set but PACELINE_RUN_ID is not: they come from the local launcher",
        *control);
    address = *control;
    run_id_ = *run_id;
    under_launcher_ = true;
  } else if (launch.world_size == 1) {
    return;
  } else if (launch.rank == 0) {
    PACELINE_CHECK(exchange.publish != nullptr);
    run_id_ = random_run_id();
    address = start_server(launch, options);
    exchange.publish(control_key, address + " " + run_id_);
  } else {
    PACELINE_CHECK(exchange.wait_for != nullptr);
    const std::string offer = exchange.wait_for(control_key);
    const auto space = offer.find(' ');
    if (space == std::string::npos) fail("rank 0 published '{}' where its control server's address should be", offer);
    address = offer.substr(0, space);
    run_id_ = offer.substr(space + 1);
  }
  try {
    client_ = std::make_unique<ControlClient>(ControlClientOptions{
        .address = address,
        .run_id = run_id_,
        .rank = launch.rank,
        .silence_s = options.silence_s,
        .on_end = options.on_end,
        .on_stop = [&stop](StopCause cause, const std::string& reason) { stop.ask(cause, reason); }});
  } catch (...) {
    leave_server(0);
    throw;
  }
  stop.on_request([this](StopCause cause, const std::string& reason) { client_->request_stop(cause, reason); });
}

RankSupervision::~RankSupervision() {
  stop_.on_request({});
  client_.reset();
  leave_server(farewell_s);
}

std::string RankSupervision::start_server(const LaunchEnvironment& launch, const SupervisionOptions& options) {
  std::string bind_address = options.bind_address;
  if (bind_address.empty()) {
    bind_address = launch.local_world_size == launch.world_size ? "127.0.0.1" : reachable_address(launch.master_addr);
  }
  server_ = std::make_unique<ControlServer>(ControlServerOptions{.world_size = launch.world_size,
                                                                 .run_id = run_id_,
                                                                 .bind_address = bind_address,
                                                                 .name = fmt::format("rank 0 (pid {})", ::getpid()),
                                                                 .silence_s = options.silence_s,
                                                                 .hang_timeout_s = options.hang_timeout_s,
                                                                 .host_rank = 0});
  const std::string address = server_->address();
  server_thread_ = std::thread([this] { serve(); });
  return address;
}

void RankSupervision::serve() {
  while (true) {
    pollfd ready{server_->descriptor(), POLLIN, 0};
    ::poll(&ready, 1, 200);
    server_->serve();
    if (const auto& asked = server_->stop_asked()) server_->stop_all(asked->first, asked->second);
    const auto failure = server_->first_failure();
    if (failure) server_->end_all(failure->reason, static_cast<int>(ExitCode::failure));
    const double now = monotonic_seconds();
    const std::lock_guard lock(mutex_);
    if (failure && failure_reason_.empty()) {
      failure_reason_ = failure->reason;
      leave_at_ = std::min(leave_at_.value_or(now + farewell_s), now + farewell_s);
    }
    told_ = failure ? server_->others_gone() : server_->all_finished();
    if (told_ || (leave_at_ && now >= *leave_at_)) {
      if (failure) server_->serve();  // now that the others are gone, this process's own rank is told
      told_ = true;
      changed_.notify_all();
      return;
    }
  }
}

void RankSupervision::leave_server(double within_s) {
  if (!server_thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    const double latest = monotonic_seconds() + within_s;
    leave_at_ = std::min(leave_at_.value_or(latest), latest);
  }
  server_thread_.join();
}

std::optional<Exchange> RankSupervision::launcher_exchange() {
  if (!under_launcher_) return std::nullopt;
  return client_->exchange();
}

void RankSupervision::report_failure(const std::string& message, int blamed) {
  if (!client_) return;
  client_->report_failure(message, blamed);
  if (!server_) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(farewell_s), [this] { return told_; });
}

void RankSupervision::finish() {
  if (!client_) return;
  client_->finish();
  if (!server_thread_.joinable()) return;
  server_thread_.join();
  const std::lock_guard lock(mutex_);
  if (!failure_reason_.empty()) fail("{}", failure_reason_);
}

}  // namespace paceline
