#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "paceline/supervision/descriptor.h"

namespace paceline {

/// One TCP connection that carries small messages: a 32-bit length, big-endian, and that many bytes of JSON. Never
/// blocks. Whatever the other side sends, it holds at most one message of the limit's size.
class ControlConnection {
 public:
  static constexpr std::size_t stranger_limit = 1024;  ///< bytes of a message before the handshake
  static constexpr std::size_t member_limit = 65536;   ///< and after it
  static constexpr std::size_t unsent_limit = 16 * member_limit;

  /// Takes a connected socket and makes it non-blocking.
  explicit ControlConnection(Descriptor socket);

  int descriptor() const { return socket_.get(); }
  void trust() { limit_ = member_limit; }

  /// Adds the messages that have arrived. False when the connection is at its end: closed, broken or against the rules.
  bool receive(std::vector<std::string>& messages);

  /// Sends, or keeps for flush() what the socket does not take now. False when the connection is at its end.
  bool send(const std::string& message);
  bool flush();
  bool has_unsent() const { return !unsent_.empty(); }

 private:
  Descriptor socket_;
  std::size_t limit_ = stranger_limit;
  std::string received_;
  std::string unsent_;
};

/// "127.0.0.1:4711" -> host and port; refuses what is not one.
std::pair<std::string, int> parse_address(const std::string& address);

/// Seconds of the monotonic clock.
double monotonic_seconds();

}  // namespace paceline
