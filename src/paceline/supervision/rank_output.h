#pragma once

#include <cstddef>
#include <string>

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

/// What a rank writes to one of its streams: to its log, and, whole or line by line with a prefix, to a shown stream.
class RankOutput {
 public:
  /// `log` stays the caller's. `shown` may be null. Without a prefix, bytes pass unchanged.
  RankOutput(Descriptor pipe, int log, ShownStream* shown, std::string prefix);

  int descriptor() const { return pipe_.get(); }
  bool open() const { return pipe_.valid(); }
  /// Takes what is there; at the end of the stream, closes it.
  void read_ready();
  /// Takes what is there and closes the stream, though a stray process may still hold its other end.
  void close();

 private:
  void take(const std::string& block);

  Descriptor pipe_;
  int log_;
  ShownStream* shown_;
  std::string prefix_;
  std::string line_;
};

}  // namespace paceline
