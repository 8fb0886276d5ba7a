#include "paceline/data/byte_bpe.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <tuple>
#include <utility>

#include "paceline/base/error.h"
#include "paceline/data/gpt2_splitter.h"
#include "paceline/data/utf8.h"

namespace paceline {
namespace {

constexpr std::size_t cache_slots = std::size_t{1} << 15;
constexpr std::size_t cache_from_bytes = 64 * 1024;
/// Above it the next merge is taken from a heap: the plain scan would be quadratic.
constexpr std::size_t long_word = 96;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

std::uint64_t mix(std::uint64_t key) { return key * 0x9E3779B97F4A7C15ULL; }

}  // namespace

ByteBpe::ByteBpe(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  const auto size = static_cast<std::int32_t>(vocabulary_.tokens.size());
  byte_ids_.fill(-1);
  ids_.reserve(vocabulary_.tokens.size());
  for (std::int32_t id = 0; id < size; ++id) {
    const std::string& token = vocabulary_.tokens[id];
    if (token.empty()) continue;
    ids_.emplace(token, id);
    if (token.size() == 1) byte_ids_[static_cast<unsigned char>(token[0])] = id;
  }
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(vocabulary_.merges.size() * 2, 16));
  merge_slots_.resize(slots);
  merge_shift_ = 64 - std::countr_zero(slots);
  for (std::size_t rank = 0; rank < vocabulary_.merges.size(); ++rank) {
    const auto& [left, right, merged] = vocabulary_.merges[rank];
    PACELINE_CHECK(left >= 0 && left < size && right >= 0 && right < size && merged >= 0 && merged < size);
    const std::uint64_t pair = pair_key(left, right);
    std::size_t slot = mix(pair) >> merge_shift_;
    while (merge_slots_[slot].found.rank >= 0 && merge_slots_[slot].pair != pair) slot = (slot + 1) & (slots - 1);
    merge_slots_[slot] = {pair, {static_cast<std::int32_t>(rank), merged}};
  }
}

ByteBpe::Found ByteBpe::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_key(left, right);
  std::size_t slot = mix(pair) >> merge_shift_;
  while (merge_slots_[slot].found.rank >= 0) {
    if (merge_slots_[slot].pair == pair) return merge_slots_[slot].found;
    slot = (slot + 1) & (merge_slots_.size() - 1);
  }
  return {};
}

std::int32_t ByteBpe::end_of_text_id() const {
  for (const AddedToken& token : vocabulary_.added) {
    if (token.content == end_of_text_token) return token.id;
  }
  fail("the tokenizer has no added token {}", end_of_text_token);
}

std::optional<std::int32_t> ByteBpe::find_token(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void ByteBpe::first_symbols(std::string_view word, std::vector<std::int32_t>& symbols) const {
  symbols.clear();
  if (vocabulary_.byte_level) {
    for (const char c : word) {
      const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) symbols.push_back(id);
    }
    return;
  }
  for (std::size_t position = 0; position < word.size();) {
    const std::size_t begin = position;
    next_code_point(word, position);
    const std::int32_t id = find_token(word.substr(begin, position - begin)).value_or(vocabulary_.unknown_id);
    if (id >= 0) symbols.push_back(id);
  }
}

std::vector<std::int32_t> ByteBpe::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  BpeEncoder(*this).encode(text, ids);
  return ids;
}

std::vector<std::int32_t> ByteBpe::encode_with_added_tokens(std::string_view text) const {
  std::vector<std::int32_t> ids;
  BpeEncoder encoder(*this);
  while (!text.empty()) {
    std::size_t first = std::string_view::npos;
    const AddedToken* token = nullptr;
    for (const AddedToken& candidate : vocabulary_.added) {
      const std::size_t position = text.find(candidate.content);
      if (position == std::string_view::npos) continue;
      if (position < first || (position == first && candidate.content.size() > token->content.size())) {
        first = position;
        token = &candidate;
      }
    }
    encoder.encode(text.substr(0, first), ids);
    if (token == nullptr) break;
    ids.push_back(token->id);
    text.remove_prefix(first + token->content.size());
  }
  return ids;
}

std::string ByteBpe::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocabulary_size() || vocabulary_.tokens[id].empty()) {
      fail("token id {} is not in the tokenizer's vocabulary of {}", id, vocabulary_size());
    }
    if (skip_special && std::any_of(vocabulary_.added.begin(), vocabulary_.added.end(),
                                    [id](const AddedToken& token) { return token.special && token.id == id; })) {
      continue;
    }
    text += vocabulary_.tokens[id];
  }
  return text;
}

BpeEncoder::BpeEncoder(const ByteBpe& tokenizer) : tokenizer_(tokenizer) {}

void BpeEncoder::encode(std::string_view text, std::vector<std::int32_t>& ids) {
  if (!tokenizer_.vocabulary_.byte_level) {
    if (!text.empty()) {
      merge_word(text);
      ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    }
    return;
  }
  bytes_seen_ += text.size();
  if (cache_.empty() && bytes_seen_ > cache_from_bytes) cache_.resize(cache_slots);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = gpt2_word_end(text, begin);
    encode_word(text.substr(begin, end - begin), ids);
    begin = end;
  }
}

void BpeEncoder::encode_word(std::string_view word, std::vector<std::int32_t>& ids) {
  if (cache_.empty() || word.size() > cached_bytes) {
    merge_word(word);
    ids.insert(ids.end(), symbols_.begin(), symbols_.end());
    return;
  }
  CachedWord& slot = cache_[XXH3_64bits(word.data(), word.size()) & (cache_slots - 1)];
  if (slot.length != word.size() || std::memcmp(slot.bytes, word.data(), word.size()) != 0) {
    merge_word(word);
    if (symbols_.size() > cached_ids) {
      ids.insert(ids.end(), symbols_.begin(), symbols_.end());
      return;
    }
    slot.length = static_cast<std::uint8_t>(word.size());
    slot.count = static_cast<std::uint8_t>(symbols_.size());
    std::memcpy(slot.bytes, word.data(), word.size());
    std::copy(symbols_.begin(), symbols_.end(), slot.ids);
  }
  ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
}

void BpeEncoder::merge_word(std::string_view word) {
  if (tokenizer_.vocabulary_.ignore_merges) {
    if (const auto id = tokenizer_.find_token(word)) {
      symbols_.assign(1, *id);
      return;
    }
  }
  tokenizer_.first_symbols(word, symbols_);
  symbols_.size() <= long_word ? merge_short() : merge_long();
}

void BpeEncoder::merge_short() {
  pairs_.clear();
  for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) {
    pairs_.push_back(tokenizer_.find_merge(symbols_[i], symbols_[i + 1]));
  }
  while (true) {
    std::size_t best = pairs_.size();
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      if (pairs_[i].rank >= 0 && (best == pairs_.size() || pairs_[i].rank < pairs_[best].rank)) best = i;
    }
    if (best == pairs_.size()) return;
    symbols_[best] = pairs_[best].merged;
    symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) pairs_[best - 1] = tokenizer_.find_merge(symbols_[best - 1], symbols_[best]);
    if (best < pairs_.size()) pairs_[best] = tokenizer_.find_merge(symbols_[best], symbols_[best + 1]);
  }
}

void BpeEncoder::merge_long() {
  constexpr std::uint32_t none = ~std::uint32_t{0};
  const auto size = static_cast<std::uint32_t>(symbols_.size());
  std::vector<std::uint32_t> next(size);
  std::vector<std::uint32_t> previous(size);
  for (std::uint32_t i = 0; i < size; ++i) {
    previous[i] = i == 0 ? none : i - 1;
    next[i] = i + 1 == size ? none : i + 1;
  }
  // rank, place of the left symbol, both symbols as they were: an entry is stale when they have changed
  using Entry = std::tuple<std::int32_t, std::uint32_t, std::int32_t, std::int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
  const auto offer = [&](std::uint32_t left) {
    if (left == none || next[left] == none) return;
    const auto found = tokenizer_.find_merge(symbols_[left], symbols_[next[left]]);
    if (found.rank >= 0) heap.emplace(found.rank, left, symbols_[left], symbols_[next[left]]);
  };
  for (std::uint32_t i = 0; i + 1 < size; ++i) offer(i);
  while (!heap.empty()) {
    const auto [rank, left, left_symbol, right_symbol] = heap.top();
    heap.pop();
    const std::uint32_t right = next[left];
    if (symbols_[left] != left_symbol || right == none || symbols_[right] != right_symbol) continue;
    symbols_[left] = tokenizer_.vocabulary_.merges[static_cast<std::size_t>(rank)].merged;
    symbols_[right] = -1;
    next[left] = next[right];
    if (next[right] != none) previous[next[right]] = left;
    offer(previous[left]);
    offer(left);
  }
  std::erase(symbols_, -1);
}

}  // namespace paceline
