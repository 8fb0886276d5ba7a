#include "paceline/supervision/run_id.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>

#include "paceline/base/error.h"

namespace paceline {

std::string random_run_id() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail("cannot draw a run id");
  std::string id;
  for (const unsigned char byte : bytes) id += fmt::format("{:02x}", byte);
  return id;
}

}  // namespace paceline
