#include "paceline/data/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/base/json_text.h"
#include "paceline/data/byte_alphabet.h"
#include "paceline/data/mapped_file.h"

namespace paceline {
namespace {

using Json = nlohmann::ordered_json;

/// Sixteen times the largest vocabularies; each id up to the largest takes memory.
constexpr std::int32_t largest_id = 1 << 22;

/// Value of a key, or null if it is absent.
const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

bool is_true(const Json& value) { return value.is_boolean() && value.get<bool>(); }

std::string type_of(const Json& object) {
  return object.is_object() && member(object, "type").is_string() ? member(object, "type").get<std::string>() : "";
}

class Reader {
 public:
  Reader(const Json& root, const std::string& name) : root_(root), name_(name) {}

  BpeVocabulary read() {
    if (!root_.is_object()) refuse_field("the file", "is not a JSON object");
    const Json& model = member(root_, "model");
    if (!model.is_object() || (model.contains("type") && type_of(model) != "BPE")) {
      refuse_field("model", "is not of type BPE");
    }
    read_pipeline();
    read_model(model);
    read_added_tokens();
    return std::move(result_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse_field(std::string_view field, fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {} {}", name_, field, fmt::format(format, std::forward<Args>(args)...));
  }

  void read_pipeline() {
    if (!member(root_, "normalizer").is_null()) {
      refuse_field("normalizer", "of type '{}' is not supported, only null", type_of(member(root_, "normalizer")));
    }
    const Json& splitter = member(root_, "pre_tokenizer");
    result_.byte_level = !splitter.is_null();
    if (splitter.is_null()) return;
    if (type_of(splitter) != "ByteLevel") {
      refuse_field("pre_tokenizer", "of type '{}' is not supported, only ByteLevel or null", type_of(splitter));
    }
    if (!splitter.contains("add_prefix_space") || is_true(splitter["add_prefix_space"])) {
      refuse_field("pre_tokenizer.add_prefix_space", "must be false");
    }
    if (splitter.contains("use_regex") && !is_true(splitter["use_regex"])) {
      refuse_field("pre_tokenizer.use_regex", "must be true");
    }
  }

  void read_model(const Json& model) {
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member(model, key);
      const bool off = value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty());
      if (!off) refuse_field(std::string("model.") + key, "is not supported");
    }
    for (const char* key : {"fuse_unk", "byte_fallback"}) {
      if (is_true(member(model, key))) refuse_field(std::string("model.") + key, "is not supported");
    }
    result_.ignore_merges = is_true(member(model, "ignore_merges"));

    const Json& vocabulary = member(model, "vocab");
    if (!vocabulary.is_object()) refuse_field("model.vocab", "is missing");
    for (const auto& [text, id] : vocabulary.items()) {
      if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > largest_id) {
        refuse_field("model.vocab", "gives token '{}' the id {}", text, id.dump());
      }
      if (text.empty()) refuse_field("model.vocab", "holds an empty token");
      const auto index = id.get<std::size_t>();
      if (result_.tokens.size() <= index) result_.tokens.resize(index + 1);
      if (!result_.tokens[index].empty()) refuse_field("model.vocab", "gives the id {} to two tokens", index);
      result_.tokens[index] = token_bytes(text);
      ids_.emplace(text, static_cast<std::int32_t>(index));
    }
    if (const Json& unknown = member(model, "unk_token"); unknown.is_string() && !result_.byte_level) {
      result_.unknown_id = find(unknown.get<std::string>(), "model.unk_token");
    }
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) refuse_field("model.merges", "is missing");
    result_.merges.reserve(merges.size());
    for (const Json& merge : merges) read_merge(merge);
  }

  void read_merge(const Json& merge) {
    const std::string field = fmt::format("model.merges[{}]", result_.merges.size());
    std::string left;
    std::string right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        refuse_field(field, "'{}' is not two tokens with a space between", text);
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      refuse_field(field, "is neither a string nor a pair of strings");
    }
    result_.merges.push_back({find(left, field), find(right, field), find(left + right, field)});
  }

  /// Hugging Face gives an added token that the vocabulary lacks the next free id, whatever the file says.
  void read_added_tokens() {
    const Json& added = member(root_, "added_tokens");
    if (added.is_null()) return;
    const auto vocabulary_size = static_cast<std::int64_t>(ids_.size());
    std::int64_t next = vocabulary_size;
    for (const Json& token : added) {
      if (!token.is_object() || !member(token, "content").is_string() || !member(token, "id").is_number_integer()) {
        refuse_field("added_tokens", "holds an entry without content or id");
      }
      const auto content = token["content"].get<std::string>();
      const auto id = token["id"].get<std::int64_t>();
      if (content.empty()) refuse_field("added_tokens", "holds an empty token");
      for (const char* key : {"single_word", "lstrip", "rstrip"}) {
        if (is_true(member(token, key)))
          refuse_field(fmt::format("added token '{}':", content), "{} is not supported", key);
      }
      const auto known = ids_.find(content);
      const std::int64_t expected = known != ids_.end() ? known->second : next;
      if (id != expected) {
        refuse_field(
            fmt::format("added token '{}'", content),
            "has id {}, but Hugging Face tokenizers would number it {} (the vocabulary has {} tokens): give it "
            "that id or fill the gap",
            id, expected, vocabulary_size);
      }
      next = std::max(next, id + 1);
      if (result_.tokens.size() <= static_cast<std::size_t>(id))
        result_.tokens.resize(static_cast<std::size_t>(id) + 1);
      result_.tokens[static_cast<std::size_t>(id)] = content;
      result_.added.push_back({content, static_cast<std::int32_t>(id), is_true(member(token, "special"))});
    }
  }

  std::string token_bytes(const std::string& text) const {
    if (!result_.byte_level) return text;
    return from_byte_alphabet(text).value_or(text);
  }

  std::int32_t find(const std::string& text, std::string_view field) const {
    const auto found = ids_.find(text);
    if (found == ids_.end()) refuse_field(field, "names '{}', which is not in model.vocab", text);
    return found->second;
  }

  const Json& root_;
  const std::string& name_;
  BpeVocabulary result_;
  std::unordered_map<std::string, std::int32_t> ids_;  ///< by the text of the file
};

}  // namespace

ByteBpe parse_tokenizer_json(std::string_view json, const std::string& name) {
  if (json_nests_too_deep(json)) fail("{}: is no tokenizer: it nests more than {} brackets", name, deepest_json);
  Json root;
  try {
    root = Json::parse(json);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: is not JSON: {}", name, error.what());
  }
  return ByteBpe(Reader(root, name).read());
}

ByteBpe read_tokenizer_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_tokenizer_json({reinterpret_cast<const char*>(file.data()), file.size()}, path.string());
}

std::string format_tokenizer_json(const ByteBpe& tokenizer) {
  const BpeVocabulary& vocabulary = tokenizer.vocabulary();
  std::vector<std::string> texts;
  texts.reserve(vocabulary.tokens.size());
  for (const std::string& token : vocabulary.tokens) {
    texts.push_back(vocabulary.byte_level ? to_byte_alphabet(token) : token);
  }
  Json added = Json::array();
  for (const AddedToken& token : vocabulary.added) {
    texts[static_cast<std::size_t>(token.id)] = token.content;
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", token.special}});
  }
  Json ids = Json::object();
  for (std::size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty()) ids[texts[id]] = id;
  }
  Json merges = Json::array();
  for (const auto& merge : vocabulary.merges) {
    const std::string& left = texts[static_cast<std::size_t>(merge.left)];
    const std::string& right = texts[static_cast<std::size_t>(merge.right)];
    // Byte-level tokens hold no space; others may, and only a pair can say so.
    merges.push_back(vocabulary.byte_level ? Json(left + " " + right) : Json::array({left, right}));
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", vocabulary.byte_level ? byte_level : Json()},
      {"post_processor", nullptr},
      {"decoder", vocabulary.byte_level ? byte_level : Json()},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token",
         vocabulary.unknown_id < 0 ? Json() : Json(texts[static_cast<std::size_t>(vocabulary.unknown_id)])},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", vocabulary.ignore_merges},
        {"vocab", ids},
        {"merges", merges}}},
  };
  return root.dump(2) + "\n";
}

FileDigest write_tokenizer_json(const ByteBpe& tokenizer, const std::filesystem::path& path) {
  return write_hashed_file(path, format_tokenizer_json(tokenizer));
}

}  // namespace paceline
