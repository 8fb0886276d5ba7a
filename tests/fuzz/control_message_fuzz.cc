#include "fuzz_target.h"

#include "paceline/supervision/control_message.h"

namespace paceline {

void parse_foreign_bytes(std::string_view bytes) {
  const nlohmann::json message = parse_message(std::string(bytes));
  for (const char* key : {"type", "run", "rank", "host", "value"}) {
    const std::string line = one_line(text_of(message, key, 16, "none"));
    require(line.size() <= 16, "a text longer than asked for");
    require(line.find('\n') == std::string::npos, "a line end inside a line");
    write_message({{"text", line}, {"number", number_of(message, key, -1)}});
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> all = {R"({"type":"hello","run":"r","rank":3,"host":"a\nb"})", "[]", "null", "\"a\"",
                                  R"({"rank":18446744073709551615,"type":"\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"})"};
  for (std::string& nested : deeply_nested_json(R"({"type":)", "}")) all.push_back(std::move(nested));
  return all;
}

}  // namespace paceline
