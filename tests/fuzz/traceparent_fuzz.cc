#include "fuzz_target.h"

#include "paceline/trace/trace_id.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  const auto parent = parse_traceparent(bytes);
  if (parent) require(parse_traceparent(format_traceparent(*parent)) == parent, "written and read back, it differs");
  const auto environment = [&](const std::string&) { return std::optional(std::string(bytes)); };
  std::string notice;
  const TraceContext context =
      trace_context_from_environment(environment, {}, [&](const std::string& line) { notice = line; });
  require(!context.trace_id.is_zero() && !context.span_id.is_zero(), "a context without an id");
  require(parent.has_value() == notice.empty(), "an ignored parent without a notice");
  require(notice.find('\n') == std::string::npos, "a notice of several lines");
}

std::vector<std::string> seeds() {
  const std::string parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  return {parent, "cc" + parent.substr(2) + "-what-follows", std::string(100'000, '0')};
}

}  // namespace paceline
