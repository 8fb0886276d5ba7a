#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "paceline/data/byte_bpe.h"
#include "paceline/data/hashed_file.h"

namespace paceline {

/// Reads a Hugging Face `tokenizer.json` of type BPE: byte-level as GPT-2's (ByteLevel pre-tokenizer with its regular
/// expression, without prefix space) or without pre-tokenizer; merges as "a b" strings or as pairs; `ignore_merges`.
/// What would be tokenised otherwise than Hugging Face does (normalizers, dropout, other pre-tokenizers, added tokens
/// that strip white space or whose id Hugging Face would renumber) is refused with an Error that names file and field.
ByteBpe read_tokenizer_json(const std::filesystem::path& path);

/// The same from text; `name` stands for the file in messages.
ByteBpe parse_tokenizer_json(std::string_view json, const std::string& name);

/// The text of a `tokenizer.json` that Hugging Face tokenizers reads to the same ids.
std::string format_tokenizer_json(const ByteBpe& tokenizer);

FileDigest write_tokenizer_json(const ByteBpe& tokenizer, const std::filesystem::path& path);

}  // namespace paceline
