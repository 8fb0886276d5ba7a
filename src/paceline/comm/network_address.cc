#include "paceline/comm/network_address.h"

#include "paceline/base/error.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

namespace paceline {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, int port, int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) fail("MASTER_ADDR='{}' cannot be resolved: {}", host, gai_strerror(error));
  return {found, &freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  PACELINE_CHECK(getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0);
  return text;
}

class Socket {
 public:
  Socket(int family, int type) : descriptor_(socket(family, type | SOCK_CLOEXEC, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

/// 0, or the error of the connection attempt.
int try_connect(const addrinfo& address, milliseconds limit) {
  const Socket socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK);
  if (socket.get() < 0) return errno;
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (poll(&wait, 1, static_cast<int>(limit.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

int try_listen(const sockaddr* address, socklen_t length, int& descriptor) {
  Socket socket(address->sa_family, SOCK_STREAM);
  if (socket.get() < 0) return errno;
  const int on = 1;
  const int off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->sa_family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket.get(), address, length) != 0 || listen(socket.get(), SOMAXCONN) != 0) return errno;
  descriptor = socket.release();
  return 0;
}

}  // namespace

ListeningSocket::~ListeningSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

int ListeningSocket::release() { return std::exchange(descriptor_, -1); }

int ListeningSocket::port() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  PACELINE_CHECK(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

ListeningSocket listen_as_master(const std::string& master_address, int port) {
  int descriptor = -1;
  int error = 0;
  if (master_address == "localhost" || is_loopback(master_address)) {
    const Addresses addresses = resolve(master_address, port, SOCK_STREAM);
    error = try_listen(addresses->ai_addr, addresses->ai_addrlen, descriptor);
  } else {
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<std::uint16_t>(port));
    error = try_listen(reinterpret_cast<sockaddr*>(&any6), sizeof(any6), descriptor);
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {
      sockaddr_in any4{};
      any4.sin_family = AF_INET;
      any4.sin_port = any6.sin6_port;
      error = try_listen(reinterpret_cast<sockaddr*>(&any4), sizeof(any4), descriptor);
    }
  }
  if (error == EADDRINUSE) {
    fail("MASTER_PORT={} is taken by another process on this machine: set another port, or start the ranks with "
         "--nproc, which finds a free one", port);
  }
  if (error != 0) fail("MASTER_PORT={}: cannot listen: {}", port, std::strerror(error));
  return ListeningSocket(descriptor);
}

void require_resolvable(const std::string& master_address) { resolve(master_address, 0, SOCK_STREAM); }

void wait_for_master(const std::string& host, int port, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  const Addresses addresses = resolve(host, port, SOCK_STREAM);
  int error = 0;
  milliseconds pause(5);
  do {
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      error = try_connect(*address, milliseconds(2000));
      if (error == 0) return;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(500));
  } while (steady_clock::now() < deadline);
  fail("nobody answers at MASTER_ADDR='{}', MASTER_PORT={} after {} s: {}; is rank 0 running, and its port reachable?",
       host, port, limit.count() / 1000.0, std::strerror(error));
}

std::string source_address_towards(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port, SOCK_DGRAM);
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const Socket socket(address->ai_family, SOCK_DGRAM);
    if (socket.get() < 0 || connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0) {
      error = errno;
      continue;
    }
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    PACELINE_CHECK(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0);
    return numeric(reinterpret_cast<sockaddr*>(&own), length);
  }
  fail("no route to '{}': {}", host, std::strerror(error));
}

bool is_loopback(const std::string& address) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, address.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

std::vector<std::string> interface_names() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) fail("cannot list the network interfaces: {}", std::strerror(errno));
  std::vector<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) names.push_back(entry->ifa_name);
  }
  freeifaddrs(list);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> parse_interfaces(const std::string& value) {
  const std::vector<std::string> existing = interface_names();
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t end = std::min(value.find(',', begin), value.size());
    const std::string name = value.substr(begin, end - begin);
    if (!std::binary_search(existing.begin(), existing.end(), name)) {
      refuse("GLOO_SOCKET_IFNAME='{}': there is no interface '{}' with an address; this machine has {}", value, name,
             fmt::join(existing, ", "));
    }
    names.push_back(name);
    begin = end + 1;
  }
  return names;
}

std::string network_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name_space[PATH_MAX];
  const ssize_t length = readlink("/proc/self/ns/net", name_space, sizeof(name_space));
  return boot + "/" + std::string(name_space, length > 0 ? length : 0);
}

}  // namespace paceline
