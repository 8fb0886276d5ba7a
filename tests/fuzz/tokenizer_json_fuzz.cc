#include "fuzz_target.h"

#include "paceline/data/tokenizer_json.h"
#include "paceline/data/utf8.h"

#include <algorithm>

namespace paceline {

/// What follows a NUL is text to encode.
void parse_foreign_bytes(std::string_view bytes) {
  const std::size_t end = std::min(bytes.find('\0'), bytes.size());
  const ByteBpe tokenizer = parse_tokenizer_json(bytes.substr(0, end), "tokenizer.json");
  std::size_t replaced = 0;
  const std::string text = repair_utf8(std::string(bytes.substr(std::min(end + 1, bytes.size()))), replaced);
  for (const auto& ids : {tokenizer.encode(text), tokenizer.encode_with_added_tokens(text)}) {
    const std::string decoded = tokenizer.decode(ids);
    require(tokenizer.vocabulary().unknown_id >= 0 || decoded.size() <= text.size(), "decoding adds text");
  }
  const ByteBpe again = parse_tokenizer_json(format_tokenizer_json(tokenizer), "written again");
  require(again.encode(text) == tokenizer.encode(text), "written and read back, it encodes otherwise");
}

std::vector<std::string> seeds() {
  const std::string text = std::string(1, '\0') + "ab ab <|endoftext|> aab";
  const std::string added = R"("added_tokens":[{"id":4,"content":"<|endoftext|>","special":true}])";
  const std::string model =
      R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3},"merges":["a b"],"ignore_merges":true}})";
  const std::string byte_level = R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)";
  std::vector<std::string> all = {
      byte_level + added + "," + model + text,
      R"({"model":{"type":"BPE","unk_token":"u","vocab":{"u":0,"a":1,"b":2,"ab":3},"merges":[["a","b"]]}})" + text,
      R"({"model":{"vocab":{"a":16777216},"merges":[]}})",
      R"({"model":{"vocab":{"a":0,"b":16777215,"c":16777216},"merges":[]}})",
      R"({"model":{"vocab":{"a":18446744073709551615},"merges":[]}})",
  };
  for (const char* key : {"added_tokens", "normalizer", "model", "pre_tokenizer"}) {
    for (std::string& nested : deeply_nested_json(std::string("{\"") + key + "\":", "}")) {
      all.push_back(std::move(nested));
    }
  }
  for (std::string& nested : deeply_nested_json(R"({"model":{"merges":[],"vocab":{"a":)", "}}}")) {
    all.push_back(std::move(nested));
  }
  return all;
}

}  // namespace paceline
