#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace paceline {

/// A listening TCP socket, closed when destroyed.
class ListeningSocket {
 public:
  /// Takes the descriptor over.
  explicit ListeningSocket(int descriptor) : descriptor_(descriptor) {}
  ListeningSocket(ListeningSocket&& other) noexcept : descriptor_(other.release()) {}
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  int descriptor() const { return descriptor_; }
  int port() const;
  /// Hands the descriptor to the caller.
  int release();

 private:
  int descriptor_;
};

/// Listens at `port` (0: a free one) for ranks that know this machine as `master_address`: on the loopback interface
/// only when that says localhost, 127.x.x.x or ::1, else on all, since a host's own name is often an alias of the
/// loopback. Throws Error naming MASTER_PORT when the port is taken.
ListeningSocket listen_as_master(const std::string& master_address, int port);

/// Throws Error naming MASTER_ADDR when the name does not resolve.
void require_resolvable(const std::string& master_address);

/// Returns once `host` accepts connections at `port`; throws Error naming both variables after `limit` when nobody
/// listens.
void wait_for_master(const std::string& host, int port, std::chrono::milliseconds limit);

/// The numeric address of this machine on the route to `host`. Throws Error when the name does not resolve (naming
/// MASTER_ADDR) or there is no route.
std::string source_address_towards(const std::string& host, int port);

/// Of a numeric address.
bool is_loopback(const std::string& address);

/// The names of this machine's interfaces that have an address, sorted.
std::vector<std::string> interface_names();

/// The interfaces that the value of GLOO_SOCKET_IFNAME names (one, or several with commas). Throws Error that names the
/// variable, its value and the interfaces that exist when one does not.
std::vector<std::string> parse_interfaces(const std::string& value);

/// Equal for processes that share a network stack: the same boot of one machine, the same network namespace.
std::string network_identity();

}  // namespace paceline
