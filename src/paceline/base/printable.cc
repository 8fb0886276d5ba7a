#include "paceline/base/printable.h"

namespace paceline {

std::string printable(std::string_view name) {
  constexpr std::size_t longest = 300;
  std::string text;
  for (const char c : name.substr(0, longest)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return name.size() > longest ? text + "..." : text;
}

}  // namespace paceline
