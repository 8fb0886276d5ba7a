#include "paceline/data/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "paceline/data/bpe_trainer.h"
#include "temporary_folder.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

const Json small_vocabulary = {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"c", 3}, {"ab", 4}, {"abc", 5}, {"bc", 6}};

Json plain(const Json& vocabulary, const Json& merges, bool ignore_merges = false, const Json& added = Json::array()) {
  return {{"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}, {"ignore_merges", ignore_merges}}}};
}

ByteBpe parse(const Json& json) { return parse_tokenizer_json(json.dump(), "t.json"); }

Json added_token(const std::string& content, int id) {
  return {{"id", id},        {"content", content}, {"single_word", false},
          {"lstrip", false}, {"rstrip", false},    {"special", true}};
}

// The ids that Hugging Face tokenizers 0.23.3 gives.
TEST(TokenizerJson, MergesAsStringsAndAsPairs) {
  for (const Json& merges : {Json::array({"a b"}), Json::array({Json::array({"a", "b"})})}) {
    const ByteBpe tokenizer = parse(plain(small_vocabulary, merges));
    EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(4, 3));
    EXPECT_THAT(tokenizer.encode("abcabc"), ElementsAre(4, 3, 4, 3));
    EXPECT_THAT(tokenizer.encode("bc"), ElementsAre(2, 3));
    EXPECT_THAT(tokenizer.encode("azb"), ElementsAre(4));  // no unk_token: the unknown letter goes
  }
}

TEST(TokenizerJson, IgnoreMergesTakesWholeWords) {
  const ByteBpe tokenizer = parse(plain(small_vocabulary, Json::array({Json::array({"a", "b"})}), true));
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(5));
  EXPECT_THAT(tokenizer.encode("abcabc"), ElementsAre(4, 3, 4, 3));
  EXPECT_THAT(tokenizer.encode("bc"), ElementsAre(6));
}

TEST(TokenizerJson, UnknownToken) {
  Json json = plain(small_vocabulary, Json::array({"a b"}));
  json["model"]["unk_token"] = "<unk>";
  EXPECT_THAT(parse(json).encode("azb"), ElementsAre(1, 0, 2));
}

TEST(TokenizerJson, TokensWithSpacesInsideAndAVocabularyFromOne) {
  const Json vocabulary = {{"a", 1}, {" ", 2}, {"a ", 3}, {"b", 4}, {"a b", 5}};
  const Json merges = Json::array({Json::array({"a", " "}), Json::array({"a ", "b"})});
  const ByteBpe tokenizer = parse(plain(vocabulary, merges));
  EXPECT_THAT(tokenizer.encode("a b"), ElementsAre(5));
  const ByteBpe again = parse_tokenizer_json(format_tokenizer_json(tokenizer), "again.json");
  EXPECT_THAT(again.encode("a b"), ElementsAre(5));
  EXPECT_EQ(again.vocabulary_size(), 6);
}

TEST(TokenizerJson, AddedTokenThatWouldBeRenumberedIsNamed) {
  const Json merges = Json::array({"a b"});
  const ByteBpe tokenizer = parse(plain(small_vocabulary, merges, false, Json::array({added_token("<h>", 7)})));
  EXPECT_THAT(tokenizer.encode_with_added_tokens("ab<h>c<h>"), ElementsAre(4, 7, 3, 7));
  EXPECT_EQ(tokenizer.vocabulary_size(), 8);
  EXPECT_THAT(error_of([&] { parse(plain(small_vocabulary, merges, false, Json::array({added_token("<h>", 50)}))); }),
              AllOf(HasSubstr("t.json"), HasSubstr("'<h>'"), HasSubstr("id 50"), HasSubstr("number it 7")));
}

TEST(TokenizerJson, WrittenAndReadAgainIsTheSame) {
  WordCounts words;
  words.add("the cat sat on the mat, th\u00e9 na\u00efve caf\u00e9\n\tthe cat sat na\u00efve caf\u00e9");
  const ByteBpe first(train_byte_bpe(words, 274));
  const TemporaryFolder folder;
  write_tokenizer_json(first, folder / "tokenizer.json");
  const ByteBpe second = read_tokenizer_json(folder / "tokenizer.json");
  EXPECT_EQ(second.vocabulary().tokens, first.vocabulary().tokens);
  EXPECT_EQ(second.end_of_text_id(), 273);
  const std::string text = "the na\u00efve cat\u00a0sat <|endoftext|> \xFF";
  EXPECT_EQ(second.encode(text), first.encode(text));
  EXPECT_EQ(second.encode_with_added_tokens(text), first.encode_with_added_tokens(text));
  EXPECT_EQ(format_tokenizer_json(second), format_tokenizer_json(first));
}

TEST(TokenizerJson, WhatWouldTokeniseOtherwiseIsRefusedByName) {
  const Json merges = Json::array({"a b"});
  const auto refusal = [&](const std::string& pointer, const Json& value) {
    Json json = plain(small_vocabulary, merges);
    json[Json::json_pointer(pointer)] = value;
    return error_of([&] { parse(json); });
  };
  EXPECT_THAT(refusal("/normalizer", {{"type", "NFC"}}), HasSubstr("t.json: normalizer of type 'NFC'"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "Whitespace"}}), HasSubstr("pre_tokenizer of type 'Whitespace'"));
  EXPECT_THAT(refusal("/pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}}),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(refusal("/model/dropout", 0.1), HasSubstr("model.dropout"));
  EXPECT_THAT(refusal("/model/byte_fallback", true), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(refusal("/model/type", "Unigram"), HasSubstr("not of type BPE"));
  EXPECT_THAT(refusal("/model/merges", Json::array({"a x"})), HasSubstr("model.merges[0] names 'x'"));
  EXPECT_THAT(refusal("/model/merges", Json::array({"a b c"})), HasSubstr("model.merges[0]"));
  EXPECT_THAT(refusal("/model/vocab/a", 2), HasSubstr("the id 2 to two tokens"));
  EXPECT_THAT(refusal("/model/vocab/a", -1), HasSubstr("token 'a' the id -1"));
  EXPECT_THAT(refusal("/model/vocab/a", 5'000'000), HasSubstr("token 'a' the id 5000000"));
  const std::string nested = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(error_of([&] { parse_tokenizer_json(R"({"model":{"vocab":{"a":)" + nested + "}}}", "t.json"); }),
              HasSubstr("t.json: is no tokenizer: it nests more than 200"));
  EXPECT_THAT(error_of([] { parse_tokenizer_json("{\"model\": ", "t.json"); }), HasSubstr("t.json: is not JSON"));
  EXPECT_THAT(error_of([] { read_tokenizer_json("/nonexistent/t.json"); }),
              HasSubstr("/nonexistent/t.json: No such file"));
}

}  // namespace
}  // namespace paceline
