#include "paceline/supervision/control_connection.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>

#include "paceline/base/error.h"

namespace paceline {

ControlConnection::ControlConnection(Descriptor socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool ControlConnection::receive(std::vector<std::string>& messages) {
  std::array<char, 4096> block;
  // Bounded, so that one that never stops sending does not keep the others waiting.
  for (int round = 0; round < 64; ++round) {
    const ssize_t got = ::recv(socket_.get(), block.data(), block.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return false;
    received_.append(block.data(), static_cast<std::size_t>(got));
    std::size_t at = 0;
    while (received_.size() - at >= 4) {
      std::uint32_t size = 0;
      for (int i = 0; i < 4; ++i) size = size << 8 | static_cast<unsigned char>(received_[at + i]);
      if (size == 0 || size > limit_) return false;
      if (received_.size() - at - 4 < size) break;
      messages.push_back(received_.substr(at + 4, size));
      at += 4 + size;
      // Before the handshake is judged, one message is all that may come.
      if (limit_ == stranger_limit && received_.size() - at > stranger_limit) return false;
    }
    received_.erase(0, at);
  }
  return true;
}

bool ControlConnection::send(const std::string& message) {
  PACELINE_CHECK(!message.empty() && message.size() <= member_limit);
  const auto size = static_cast<std::uint32_t>(message.size());
  for (int shift = 24; shift >= 0; shift -= 8) unsent_ += static_cast<char>(size >> shift & 0xff);
  unsent_ += message;
  return flush();
}

bool ControlConnection::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return unsent_.size() <= unsent_limit;
    if (sent < 0) return false;
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

std::pair<std::string, int> parse_address(const std::string& address) {
  const auto colon = address.rfind(':');
  int port = 0;
  if (colon != std::string::npos && colon > 0) {
    const char* const begin = address.data() + colon + 1;
    const char* const end = address.data() + address.size();
    const auto [stop, error] = std::from_chars(begin, end, port);
    if (error == std::errc() && stop == end && port > 0 && port < 65536) return {address.substr(0, colon), port};
  }
  refuse("'{}' is not an address of the form host:port", address);
}

double monotonic_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace paceline
