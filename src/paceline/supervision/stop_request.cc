#include "paceline/supervision/stop_request.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "paceline/base/error.h"
#include "paceline/supervision/control_connection.h"

namespace paceline {

const char* stop_cause_text(StopCause cause) {
  switch (cause) {
    case StopCause::none: return "nothing";
    case StopCause::terminate: return "SIGTERM";
    case StopCause::interrupt: return "SIGINT";
    case StopCause::time_limit: return "the time limit";
  }
  return "nothing";
}

int stop_exit_code(StopCause cause) {
  return static_cast<int>(cause == StopCause::interrupt ? ExitCode::interrupted : ExitCode::terminated);
}

StopRequest::StopRequest(std::optional<double> max_minutes) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  PACELINE_CHECK(pthread_sigmask(SIG_BLOCK, &set, &previous_mask_) == 0);
  signals_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  end_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (!signals_.valid() || !end_.valid()) fail("cannot watch for signals: no free file descriptor");
  thread_ = std::thread([this, max_minutes] { watch(max_minutes); });
}

StopRequest::~StopRequest() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(end_.get(), &one, sizeof one);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

void StopRequest::watch(std::optional<double> max_minutes) {
  constexpr double never = 1e300;
  double limit = max_minutes && *max_minutes > 0 ? monotonic_seconds() + 60 * *max_minutes : never;
  double requested_at = never;
  while (true) {
    std::array<pollfd, 2> ready{pollfd{signals_.get(), POLLIN, 0}, pollfd{end_.get(), POLLIN, 0}};
    const double wait = limit - monotonic_seconds();
    const int milliseconds = limit == never ? -1 : static_cast<int>(std::clamp(std::ceil(wait * 1000), 0.0, 1e9));
    ::poll(ready.data(), ready.size(), milliseconds);
    if (ready[1].revents != 0) return;
    const double now = monotonic_seconds();
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const bool interrupt = info.ssi_signo == SIGINT;
      // torchrun repeats a terminal's SIGINT within milliseconds; a person does not.
      if (interrupt && now - requested_at >= 1) ::_exit(static_cast<int>(ExitCode::interrupted));
      if (requested_at == never) requested_at = now;
      request(interrupt ? StopCause::interrupt : StopCause::terminate, interrupt ? "SIGINT" : "SIGTERM", true);
    }
    if (now >= limit) {
      limit = never;
      if (requested_at == never) requested_at = now;
      request(StopCause::time_limit, fmt::format("the time limit of {} minutes", *max_minutes), true);
    }
  }
}

void StopRequest::request(StopCause cause, const std::string& reason, bool own) {
  std::function<void(StopCause, const std::string&)> call;
  {
    const std::lock_guard lock(mutex_);
    if (first_cause_ != StopCause::none) return;
    first_cause_ = cause;
    reason_ = reason;
    own_ = own;
    if (own) call = call_;
  }
  // First the others, then requested(): the main thread may finish and leave as soon as it sees it.
  if (call) call(cause, reason);
  cause_.store(cause, std::memory_order_release);
}

std::string StopRequest::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void StopRequest::ask(StopCause cause, const std::string& reason) { request(cause, reason, false); }

void StopRequest::on_request(std::function<void(StopCause, const std::string&)> call) {
  bool already = false;
  StopCause cause = StopCause::none;
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
    cause = first_cause_;
    already = cause != StopCause::none && own_ && call;
    reason = reason_;
  }
  if (already) call(cause, reason);
}

}  // namespace paceline
