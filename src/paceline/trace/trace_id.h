#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

/// `Size` random bytes that name something; all zeros means "none". Written as lower-case hex everywhere.
template <std::size_t Size>
struct HexId {
  std::array<std::uint8_t, Size> bytes{};

  bool is_zero() const { return *this == HexId{}; }
  std::string hex() const;
  /// Exactly 2 x Size hex digits, lower case as W3C and OpenTelemetry write them; nothing else is an id.
  static std::optional<HexId> parse(std::string_view hex);
  auto operator<=>(const HexId&) const = default;
};

/// 128-bit id of one pipeline, from the data to inference.
using TraceId = HexId<16>;
/// 64-bit id of one span inside a trace.
using SpanId = HexId<8>;

TraceId new_trace_id();  ///< from getrandom(2), never zero
SpanId new_span_id();

/// What a process hands to those it starts: W3C Trace Context, version 00.
struct TraceParent {
  TraceId trace_id;
  SpanId span_id;
  std::uint8_t flags = 1;  ///< bit 0: sampled, bit 1: the trace id's right half is random
  bool operator==(const TraceParent&) const = default;
};

/// "00-<32 hex>-<16 hex>-<2 hex>".
std::string format_traceparent(const TraceParent& parent);

/// Nothing for what W3C calls invalid: upper case, another length, version ff, zero ids. A later version's longer
/// value is read by its first four fields.
std::optional<TraceParent> parse_traceparent(std::string_view text);

/// A span of another trace (or of this one) that this work follows from, such as the one that wrote its input.
struct TraceLink {
  TraceId trace_id;
  SpanId span_id;
  std::string name;  ///< what was produced there, e.g. "data version 5c1f"
  bool operator==(const TraceLink&) const = default;
};

/// The place of one command in its trace.
struct TraceContext {
  TraceId trace_id;
  SpanId span_id;                ///< the command's own root span
  std::optional<SpanId> parent;  ///< the span of the process that started it, where it joined a trace
  std::vector<TraceLink> links;  ///< the spans that produced its inputs

  /// For the environment of a process started by this command: it joins the trace under the command's span.
  TraceParent for_child() const { return {trace_id, span_id, 1}; }
};

/// getenv-like: nothing where the variable is not set.
using GetEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

/// Joins the trace that TRACEPARENT names, otherwise starts a new one; `inputs` become its links either way. A
/// TRACEPARENT that is not valid is ignored, and `notice` (may be empty) is called once with one line that says so.
TraceContext trace_context_from_environment(const GetEnvironment& get_environment, std::vector<TraceLink> inputs = {},
                                            const std::function<void(const std::string&)>& notice = {});

/// GetEnvironment of this process.
std::optional<std::string> process_environment(const std::string& name);

}  // namespace paceline
