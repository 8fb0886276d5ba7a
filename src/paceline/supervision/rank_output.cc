#include "paceline/supervision/rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>

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

void LastWords::show(ShownStream& stream, const std::string& last_line) const {
  std::set<std::string> said;
  for (const Line& line : lines_) {
    const std::string reason = line.text.substr(std::string_view(marker).size());
    if (last_line.find(reason) != std::string::npos || !said.insert(reason).second) continue;
    stream.add(line.prefix + line.text + "\n");
  }
}

RankOutput::RankOutput(Descriptor pipe, int log, ShownStream* shown, std::string prefix, LastWords* last_words)
    : pipe_(std::move(pipe)), log_(log), shown_(shown), prefix_(std::move(prefix)), last_words_(last_words) {
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
      if (!line_.empty()) end_line();
    }
  }
}

void RankOutput::close() {
  read_ready();
  pipe_.reset();
  if (!line_.empty()) end_line();
}

bool RankOutput::may_be_last_words() const {
  const std::string_view marker = LastWords::marker;
  return line_.starts_with(marker) || marker.starts_with(line_);
}

void RankOutput::end_line() {
  if (last_words_ != nullptr && line_.starts_with(LastWords::marker)) {
    last_words_->add(prefix_, line_);
  } else {
    shown_->add(prefix_ + line_ + "\n");
  }
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
  if (prefix_.empty() && last_words_ == nullptr) return shown_->add(block);
  constexpr std::size_t longest = 8192;
  std::string passing;
  for (const char c : block) {
    if (prefix_.empty() && !gathers_) {
      passing += c;
      gathers_ = c == '\n' || c == '\r';
      continue;
    }
    if (c != '\n') line_ += c;
    if (c == '\n' || line_.size() >= longest) {
      shown_->add(passing);
      passing.clear();
      end_line();
    } else if (prefix_.empty() && !may_be_last_words()) {
      passing += line_;
      line_.clear();
      gathers_ = c == '\r';
    }
  }
  if (!passing.empty()) shown_->add(passing);
}

}  // namespace paceline
