#include "paceline/data/bpe_trainer.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <queue>
#include <utility>
#include <vector>

#include "paceline/base/error.h"
#include "paceline/data/byte_alphabet.h"
#include "paceline/data/gpt2_splitter.h"

namespace paceline {
namespace {

constexpr std::int64_t least_pair_count = 2;

using Pair = std::uint64_t;  // left id in the upper half

Pair make_pair_key(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

struct PairHasher {
  std::size_t operator()(Pair pair) const { return pair * 0x9E3779B97F4A7C15ULL >> 16; }
};

struct Word {
  std::uint32_t begin;  ///< in the common array of symbols
  std::uint32_t length;
  std::int64_t count;
};

struct PairState {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  ///< that held the pair at some time
};

struct Candidate {
  std::int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  void add_word(const std::vector<std::int32_t>& symbols, std::int64_t count) {
    words_.push_back({static_cast<std::uint32_t>(symbols_.size()), static_cast<std::uint32_t>(symbols.size()), count});
    symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
  }

  /// Grows `tokens` to `end` of them and returns the merges. No two give the same token: what is inside a token was
  /// merged without regard to what is around it, so equal bytes were merged in the same way.
  std::vector<BpeVocabulary::Merge> train(std::vector<std::string>& tokens, std::size_t end) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
      for (std::uint32_t i = 0; i + 1 < words_[word].length; ++i) count_pair(word, i);
    }
    for (const auto& [pair, state] : pairs_) queue_.push({state.count, pair});
    std::vector<BpeVocabulary::Merge> merges;
    while (tokens.size() < end && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(best.pair);
      const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count != best.count) {  // an old entry: its pair lost some of its places to other merges
        if (count >= least_pair_count) queue_.push({count, best.pair});
        continue;
      }
      if (count < least_pair_count) break;
      const auto left = static_cast<std::int32_t>(best.pair >> 32);
      const auto right = static_cast<std::int32_t>(best.pair & 0xFFFFFFFFU);
      const auto merged = static_cast<std::int32_t>(tokens.size());
      tokens.push_back(tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)]);
      merges.push_back({left, right, merged});
      const std::vector<std::uint32_t> places = std::move(found->second.words);
      pairs_.erase(found);
      merge(places, left, right, merged);
    }
    return merges;
  }

 private:
  void count_pair(std::uint32_t word, std::uint32_t i) {
    const std::int32_t* symbols = symbols_.data() + words_[word].begin;
    PairState& state = pairs_[make_pair_key(symbols[i], symbols[i + 1])];
    state.count += words_[word].count;
    if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
  }

  void merge(const std::vector<std::uint32_t>& places, std::int32_t left, std::int32_t right, std::int32_t merged) {
    grown_.clear();
    for (const std::uint32_t place : places) {
      Word& word = words_[place];
      std::int32_t* symbols = symbols_.data() + word.begin;
      std::uint32_t read = 0;
      while (read + 1 < word.length && !(symbols[read] == left && symbols[read + 1] == right)) ++read;
      if (read + 1 >= word.length) continue;
      // The word's pairs are taken out and put back: words are a few symbols long.
      for (std::uint32_t i = 0; i + 1 < word.length; ++i) {
        const auto state = pairs_.find(make_pair_key(symbols[i], symbols[i + 1]));
        if (state != pairs_.end()) state->second.count -= word.count;
      }
      std::uint32_t write = 0;
      for (read = 0; read < word.length;) {
        const bool match = read + 1 < word.length && symbols[read] == left && symbols[read + 1] == right;
        symbols[write++] = match ? merged : symbols[read];
        read += match ? 2 : 1;
      }
      word.length = write;
      for (std::uint32_t i = 0; i + 1 < word.length; ++i) {
        const Pair pair = make_pair_key(symbols[i], symbols[i + 1]);
        PairState& state = pairs_[pair];
        state.count += word.count;
        if (symbols[i] == merged || symbols[i + 1] == merged) {
          if (state.words.empty() || state.words.back() != place) state.words.push_back(place);
          grown_.push_back(pair);
        }
      }
    }
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const Pair pair : grown_) queue_.push({pairs_[pair].count, pair});
  }

  std::vector<std::int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState, PairHasher> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> grown_;
};

}  // namespace

std::size_t WordCounts::Hasher::operator()(std::string_view word) const {
  return XXH3_64bits(word.data(), word.size());
}

void WordCounts::add(std::string_view text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = gpt2_word_end(text, begin);
    const std::string_view word = text.substr(begin, end - begin);
    const auto found = counts_.find(word);
    if (found != counts_.end()) {
      ++found->second;
    } else {
      counts_.emplace(word, 1);
    }
    begin = end;
  }
}

void WordCounts::merge(const WordCounts& other) {
  for (const auto& [word, count] : other.counts_) counts_[word] += count;
}

BpeVocabulary train_byte_bpe(const WordCounts& words, std::int64_t vocabulary_size) {
  if (vocabulary_size <= 256) {
    refuse("a byte-level vocabulary has at least 257 tokens (256 bytes and {}), not {}", end_of_text_token,
           vocabulary_size);
  }
  BpeVocabulary result;
  std::array<std::int32_t, 256> byte_ids{};
  for (const unsigned char byte : bytes_in_alphabet_order()) {
    byte_ids[byte] = static_cast<std::int32_t>(result.tokens.size());
    result.tokens.emplace_back(1, static_cast<char>(byte));
  }
  Trainer trainer;
  std::vector<std::int32_t> symbols;
  for (const auto& [word, count] : words.counts_) {
    if (word.size() < 2) continue;
    symbols.clear();
    for (const char c : word) symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
    trainer.add_word(symbols, count);
  }
  const auto end_of_text = static_cast<std::int32_t>(vocabulary_size - 1);
  result.merges = trainer.train(result.tokens, static_cast<std::size_t>(end_of_text));
  if (result.tokens.size() < static_cast<std::size_t>(end_of_text)) {
    refuse("the text is too small for a vocabulary of {}: its pairs give {} tokens", vocabulary_size,
           result.tokens.size() + 1);
  }
  result.tokens.emplace_back(end_of_text_token);
  result.added.push_back({std::string(end_of_text_token), end_of_text, true});
  return result;
}

}  // namespace paceline
