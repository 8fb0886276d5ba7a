#include "paceline/data/exact_dedup.h"

#include <xxhash.h>

#include <string>

namespace paceline {

ContentHash content_hash(std::string_view text) {
  std::string normalised;
  normalised.reserve(text.size());
  bool space = false;
  for (const char c : text) {
    if (c == ' ' || (c >= '\t' && c <= '\r')) {
      space = !normalised.empty();
      continue;
    }
    if (space) normalised += ' ';
    space = false;
    normalised += c;
  }
  const XXH128_hash_t hash = XXH3_128bits(normalised.data(), normalised.size());
  return {hash.low64, hash.high64};
}

}  // namespace paceline
