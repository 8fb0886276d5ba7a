#include "paceline/trace/trace_id.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/printable.h"

namespace paceline {
namespace {

constexpr char hex_digits[] = "0123456789abcdef";

int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

void fill_with_random_bytes(std::span<std::uint8_t> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("the system gives no random numbers for a trace id: {}", std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

template <typename Id>
Id new_id() {
  Id id;
  do fill_with_random_bytes(id.bytes);
  while (id.is_zero());
  return id;
}

}  // namespace

template <std::size_t Size>
std::string HexId<Size>::hex() const {
  std::string text;
  text.reserve(2 * Size);
  for (const std::uint8_t byte : bytes) {
    text += hex_digits[byte >> 4];
    text += hex_digits[byte & 15];
  }
  return text;
}

template <std::size_t Size>
std::optional<HexId<Size>> HexId<Size>::parse(std::string_view hex) {
  if (hex.size() != 2 * Size) return std::nullopt;
  HexId id;
  for (std::size_t i = 0; i < Size; ++i) {
    const int high = hex_value(hex[2 * i]);
    const int low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    id.bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return id;
}

template struct HexId<16>;
template struct HexId<8>;
template struct HexId<1>;

TraceId new_trace_id() { return new_id<TraceId>(); }
SpanId new_span_id() { return new_id<SpanId>(); }

std::string format_traceparent(const TraceParent& parent) {
  return fmt::format("00-{}-{}-{:02x}", parent.trace_id.hex(), parent.span_id.hex(), parent.flags);
}

std::optional<TraceParent> parse_traceparent(std::string_view text) {
  constexpr std::size_t length = 55;  // 2 + 1 + 32 + 1 + 16 + 1 + 2
  if (text.size() < length || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const auto version = HexId<1>::parse(text.substr(0, 2));
  const auto trace_id = TraceId::parse(text.substr(3, 32));
  const auto span_id = SpanId::parse(text.substr(36, 16));
  const auto flags = HexId<1>::parse(text.substr(53, 2));
  if (!version || !trace_id || !span_id || !flags) return std::nullopt;
  if (version->bytes[0] == 0xff || trace_id->is_zero() || span_id->is_zero()) return std::nullopt;
  const bool longer = text.size() > length;
  if (longer && (version->bytes[0] == 0 || text[length] != '-')) return std::nullopt;
  return TraceParent{*trace_id, *span_id, flags->bytes[0]};
}

TraceContext trace_context_from_environment(const GetEnvironment& get_environment, std::vector<TraceLink> inputs,
                                            const std::function<void(const std::string&)>& notice) {
  TraceContext context;
  context.span_id = new_span_id();
  context.links = std::move(inputs);
  if (const auto text = get_environment("TRACEPARENT")) {
    if (const auto parent = parse_traceparent(*text)) {
      context.trace_id = parent->trace_id;
      context.parent = parent->span_id;
      return context;
    }
    if (notice) {
      notice(fmt::format("TRACEPARENT is not a valid trace parent (\"{}\"): a new trace starts", printable(text->substr(0, 80))));
    }
  }
  context.trace_id = new_trace_id();
  return context;
}

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace paceline
