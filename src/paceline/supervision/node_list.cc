#include "paceline/supervision/node_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "paceline/base/error.h"

namespace paceline {
namespace {

struct Expansion {
  std::string first;
  std::int64_t count = 0;
};

/// Reads one list from left to right; every step consumes at least one character or refuses.
class NodeListReader {
 public:
  explicit NodeListReader(std::string_view text) : text_(text) {}

  Expansion read() {
    Expansion all = read_name();
    while (at_ < text_.size()) {
      take(',');
      all.count = add(all.count, read_name().count);
    }
    return all;
  }

 private:
  [[noreturn]] void reject(const char* why) const {
    refuse("cannot read the node list '{}' (SLURM_STEP_NODELIST or SLURM_JOB_NODELIST): {} at character {}; "
           "set MASTER_ADDR to the host of rank 0 by hand",
           text_.substr(0, 200), why, at_ + 1);
  }

  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void take(char expected) {
    if (next() != expected) reject(at_ < text_.size() ? "unexpected character" : "unexpected end");
    ++at_;
  }

  std::int64_t add(std::int64_t a, std::int64_t b) const {
    if (a > limit - b) reject("more hosts than there can be");
    return a + b;
  }
  std::int64_t multiply(std::int64_t a, std::int64_t b) const {
    if (b != 0 && a > limit / b) reject("more hosts than there can be");
    return a * b;
  }

  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
        c == '.';
  }

  Expansion read_name() {
    Expansion name{"", 1};
    const std::size_t start = at_;
    while (in_name(next()) || next() == '[') {
      if (next() == '[') {
        const Expansion numbers = read_bracket();
        name.first += numbers.first;
        name.count = multiply(name.count, numbers.count);
      } else {
        name.first += text_[at_++];
      }
    }
    if (at_ == start) reject(at_ < text_.size() ? "a host name is missing" : "unexpected end");
    return name;
  }

  Expansion read_bracket() {
    take('[');
    Expansion all = read_range();
    while (next() == ',') {
      ++at_;
      all.count = add(all.count, read_range().count);
    }
    take(']');
    return all;
  }

  Expansion read_range() {
    const std::string_view low = read_digits();
    if (next() != '-') return {std::string(low), 1};
    ++at_;
    const std::string_view high = read_digits();
    const std::int64_t from = number(low), to = number(high);
    if (to < from) reject("a range that runs backwards");
    return {std::string(low), to - from + 1};
  }

  std::string_view read_digits() {
    const std::size_t start = at_;
    while (next() >= '0' && next() <= '9') ++at_;
    if (at_ == start) reject(at_ < text_.size() ? "a number is missing" : "unexpected end");
    if (at_ - start > 15) reject("a number too long");
    return text_.substr(start, at_ - start);
  }

  static std::int64_t number(std::string_view digits) {
    std::int64_t value = 0;
    for (const char digit : digits) value = value * 10 + (digit - '0');
    return value;
  }

  static constexpr std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::string first_host(std::string_view node_list) { return NodeListReader(node_list).read().first; }

std::int64_t host_count(std::string_view node_list) { return NodeListReader(node_list).read().count; }

}  // namespace paceline
