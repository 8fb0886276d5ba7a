#include "paceline/base/json_text.h"

namespace paceline {

bool json_nests_too_deep(std::string_view text) {
  int depth = 0;
  bool inside_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside_string) {
      if (c == '\\') ++i;
      inside_string = c != '"';
    } else if (c == '"') {
      inside_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > deepest_json) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace paceline
