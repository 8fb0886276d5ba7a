#pragma once

#include <string>
#include <string_view>

namespace paceline {

/// Cuts bytes that come in pieces into whole UTF-8 sequences; ill-formed ones become U+FFFD.
class Utf8Stream {
 public:
  /// What is complete of everything given so far and not yet returned.
  std::string add(std::string_view bytes);
  /// What is left, repaired.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace paceline
