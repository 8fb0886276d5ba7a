#include "paceline/supervision/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace paceline {

void ShownStream::add(const std::string& text) {
  if (descriptor_ < 0) return;
  if (unwritten_.size() + text.size() > limit) {
    if (!leaving_out_) unwritten_ += "\n[output left out; the rank's log has all of it]\n";
    leaving_out_ = true;
    return;
  }
  leaving_out_ = false;
  unwritten_ += text;
}

bool ShownStream::write_some(std::size_t most) {
  const ssize_t written = ::write(descriptor_, unwritten_.data(), std::min(most, unwritten_.size()));
  if (written < 0 && (errno == EINTR || errno == EAGAIN)) return false;
  if (written < 0) {  // closed: nobody wants it any more
    descriptor_ = -1;
    unwritten_.clear();
    return false;
  }
  unwritten_.erase(0, static_cast<std::size_t>(written));
  return true;
}

void ShownStream::write_ready() {
  // A pipe that polls writable takes a page without blocking. Its flags are not ours to change.
  constexpr std::size_t page = 4096;
  while (has_unwritten()) {
    pollfd ready{descriptor_, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0 || !write_some(page)) return;
  }
}

void ShownStream::write_all() {
  while (has_unwritten()) {
    pollfd ready{descriptor_, POLLOUT, 0};
    ::poll(&ready, 1, 1000);
    if (ready.revents != 0) write_some(unwritten_.size());
  }
}

RankOutput::RankOutput(Descriptor pipe, int log, ShownStream* shown, std::string prefix)
    : pipe_(std::move(pipe)), log_(log), shown_(shown), prefix_(std::move(prefix)) {
  ::fcntl(pipe_.get(), F_SETFL, ::fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
}

void RankOutput::read_ready() {
  std::array<char, 16384> block;
  for (int round = 0; open() && round < 16; ++round) {
    const ssize_t got = ::read(pipe_.get(), block.data(), block.size());
    if (got > 0) {
      take(std::string(block.data(), static_cast<std::size_t>(got)));
    } else if (got == 0 || errno != EINTR) {
      if (got < 0 && errno == EAGAIN) return;
      pipe_.reset();
      if (!line_.empty()) shown_->add(prefix_ + line_ + "\n");
      line_.clear();
    }
  }
}

void RankOutput::close() {
  read_ready();
  pipe_.reset();
  if (!line_.empty()) shown_->add(prefix_ + line_ + "\n");
  line_.clear();
}

void RankOutput::take(const std::string& block) {
  for (std::size_t at = 0; at < block.size();) {
    const ssize_t written = ::write(log_, block.data() + at, block.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // a full disk must not stop the run
    at += static_cast<std::size_t>(written);
  }
  if (shown_ == nullptr) return;
  if (prefix_.empty()) return shown_->add(block);
  constexpr std::size_t longest = 8192;
  for (const char c : block) {
    if (c != '\n') line_ += c;
    if (c == '\n' || line_.size() >= longest) {
      shown_->add(prefix_ + line_ + "\n");
      line_.clear();
    }
  }
}

}  // namespace paceline
