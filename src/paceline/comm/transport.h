#pragma once

#include "paceline/comm/work.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace paceline {

/// How one rank moves bytes to and from the others: all that a backend has to give. Groups and collectives are built on
/// top of it, and all groups of a rank share one transport. Ranks are world ranks.
///
/// Messages between two ranks with the same tag arrive in the order in which they were sent; the receiver gives the
/// exact size. All calls may be made from several threads. Tags are below 2^31.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Returns at once; `data` may be reused immediately.
  virtual void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag) = 0;
  /// `data` stays untouched until the work was waited for.
  virtual std::unique_ptr<Work> send_start(const void* data, std::size_t bytes, int peer, std::uint32_t tag) = 0;
  virtual std::unique_ptr<Work> receive_start(void* data, std::size_t bytes, int peer, std::uint32_t tag) = 0;

  /// Makes every pending and later call on this rank throw Error with this reason within half a second.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace paceline
