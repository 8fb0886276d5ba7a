#pragma once

#include <functional>
#include <string>

namespace paceline {

/// A small shared table of texts that all ranks of a run can reach: the control connection offers one, a TCPStore is
/// one.
struct Exchange {
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::string(const std::string& key)> wait_for;  ///< blocks until the key is published
};

}  // namespace paceline
