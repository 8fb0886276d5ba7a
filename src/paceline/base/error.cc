#include "paceline/base/error.h"

namespace paceline {

void throw_error(std::string message, ExitCode code) { throw Error(message, code); }

void throw_broken_invariant(const char* file, int line, const char* condition) {
  throw std::logic_error(std::string("broken invariant at ") + file + ":" + std::to_string(line) + ": " + condition);
}

}  // namespace paceline
