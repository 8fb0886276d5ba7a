#include "paceline/supervision/rank_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace paceline {
namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
  }
  std::string content() const {
    std::string text(65536, '\0');
    const ssize_t got = ::read(read.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  Descriptor read, write;
};

/// What a user sees of ranks that write `blocks` (by rank) to their standard errors, before and after the end.
struct Shown {
  std::string before, after, logs;
};

Shown show(const std::vector<std::vector<std::string>>& blocks, const std::string& last_line) {
  Pipe screen, log;
  ShownStream stream(screen.write.get());
  LastWords last_words;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) {
    Pipe pipe;
    const std::string prefix = rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
    RankOutput output(std::move(pipe.read), log.write.get(), &stream, prefix, &last_words);
    for (const std::string& block : blocks[rank]) {
      EXPECT_EQ(::write(pipe.write.get(), block.data(), block.size()), static_cast<ssize_t>(block.size()));
      output.read_ready();
    }
    pipe.write.reset();
    output.close();
  }
  Shown shown;
  stream.write_all();
  shown.before = screen.content();
  last_words.show(stream, last_line);
  stream.write_all();
  shown.after = screen.content();
  shown.logs = log.content();
  return shown;
}

TEST(RankOutput, OtherLinesPassAtOnceWhateverTheBlocks) {
  const std::string bar = "\rstep 1/9\rstep 2/9\npace\npaceline 0.1\n\npacel";
  std::vector<std::string> bytes;
  for (const char c : bar) bytes.emplace_back(1, c);
  for (const auto& blocks : {std::vector{bar}, bytes}) {
    EXPECT_EQ(show({blocks}, "").before, bar + "\n");
    EXPECT_EQ(show({{}, {"one\ntwo"}}, "").before, "[rank 1] one\n[rank 1] two\n");
  }
}

TEST(RankOutput, WhatAllSayAlikeIsShownOnce) {
  const std::string words = "paceline: the file is broken\n";
  const Shown shown = show({{"begin\n", "pacel", "ine: the file is broken\n"}, {words}, {"more\n" + words}}, "");
  EXPECT_EQ(shown.before, "begin\n[rank 2] more\n");
  EXPECT_EQ(shown.after, words);
  EXPECT_EQ(shown.logs, "begin\n" + words + words + "more\n" + words);
}

TEST(RankOutput, WhatTheLastLineSaysIsNotSaidBefore) {
  const Shown shown = show({{"paceline: ending rank 0\n"}, {"paceline: full disk\n"}}, "rank 1 failed: full disk; its log: x");
  EXPECT_EQ(shown.before, "");
  EXPECT_EQ(shown.after, "paceline: ending rank 0\n");
  EXPECT_EQ(show({{}, {"paceline: full disk\n"}}, "rank 1 failed").after, "[rank 1] paceline: full disk\n");
}

}  // namespace
}  // namespace paceline
