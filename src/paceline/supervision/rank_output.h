#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "paceline/supervision/descriptor.h"

namespace paceline {

/// One of this process's own output streams, never waited for: a terminal that is stopped or a pager that does not read
/// must not stop the run. What it does not take for long is left out, with a note; the log has it.
class ShownStream {
 public:
  explicit ShownStream(int descriptor) : descriptor_(descriptor) {}

  int descriptor() const { return descriptor_; }
  bool has_unwritten() const { return !unwritten_.empty(); }
  void add(const std::string& text);
  /// Writes some of it, if the stream takes it now.
  void write_ready();
  /// Writes all of it, however long that takes.
  void write_all();

 private:
  bool write_some(std::size_t most);

  static constexpr std::size_t limit = 1 << 20;
  int descriptor_;
  bool leaving_out_ = false;
  std::string unwritten_;
};

/// The lines with which ranks say why they end ("paceline: ..."), kept until the end of the run: what all ranks say
/// alike, and what the last line says, a user reads once.
class LastWords {
 public:
  static constexpr const char* marker = "paceline: ";

  void add(const std::string& prefix, const std::string& line) { lines_.push_back({prefix, line}); }
  /// Each different line once, with the prefix of the rank that said it first; none that is part of `last_line`.
  void show(ShownStream& stream, const std::string& last_line) const;

 private:
  struct Line {
    std::string prefix;
    std::string text;
  };
  std::vector<Line> lines_;
};

/// What a rank writes to one of its streams: to its log, and, whole or line by line with a prefix, to a shown stream.
class RankOutput {
 public:
  /// `log` stays the caller's. `shown` may be null. Without a prefix, bytes pass unchanged. Last words go to
  /// `last_words` instead, unless that is null.
  RankOutput(Descriptor pipe, int log, ShownStream* shown, std::string prefix, LastWords* last_words = nullptr);

  int descriptor() const { return pipe_.get(); }
  bool open() const { return pipe_.valid(); }
  /// Takes what is there; at the end of the stream, closes it.
  void read_ready();
  /// Takes what is there and closes the stream, though a stray process may still hold its other end.
  void close();

 private:
  void take(const std::string& block);
  bool may_be_last_words() const;
  void end_line();

  Descriptor pipe_;
  int log_;
  ShownStream* shown_;
  std::string prefix_;
  LastWords* last_words_;
  std::string line_;      ///< what is not shown yet of the current line
  bool gathers_ = true;   ///< without a prefix: the current line may be last words
};

}  // namespace paceline
