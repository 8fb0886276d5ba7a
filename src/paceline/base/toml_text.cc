#include "paceline/base/toml_text.h"

namespace paceline {

int line_with_too_many_dots(std::string_view toml) {
  int line = 1;
  int dots = 0;
  for (const char c : toml) {
    if (c == '\n') {
      ++line;
      dots = 0;
    } else if (c == '.' && ++dots > most_dots_in_a_line) {
      return line;
    }
  }
  return 0;
}

}  // namespace paceline
