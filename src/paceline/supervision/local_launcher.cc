#include "paceline/supervision/local_launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include "paceline/base/error.h"
#include "paceline/supervision/child_process.h"
#include "paceline/supervision/control_server.h"
#include "paceline/supervision/launch_environment.h"
#include "paceline/supervision/rank_output.h"
#include "paceline/supervision/run_id.h"
#include "paceline/supervision/usable_cores.h"

extern char** environ;

namespace paceline {
namespace {

constexpr double terminate_after_s = 1;  // of the end of the run: who has not left by itself gets SIGTERM
constexpr double kill_after_s = 2.5;     // and SIGKILL

/// A port on the loopback that is ours from now on: bound and listening.
std::pair<Descriptor, int> listen_on_free_port() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket.valid() || ::bind(socket.get(), generic, length) != 0 || ::listen(socket.get(), 1024) != 0 ||
      ::getsockname(socket.get(), generic, &length) != 0) {
    fail("cannot listen on 127.0.0.1 for the ranks' rendezvous: {}", std::strerror(errno));
  }
  return {std::move(socket), ntohs(address.sin_port)};
}

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("cannot create a pipe for a rank's output: {}", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Another launcher's variables, which would contradict ours in the ranks.
bool is_foreign(std::string_view name) {
  for (const std::string_view prefix :
       {"OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL", "SLURM_STEP", "TORCHELASTIC_", "PACELINE_LAUNCHER"}) {
    if (name.starts_with(prefix)) return true;
  }
  return name == "SLURM_PROCID" || name == "SLURM_NTASKS" || name == "SLURM_LOCALID" || name == "SLURM_CPUS_PER_TASK";
}

class Variables {
 public:
  Variables() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const auto equals = text.find('=');
      if (equals != std::string_view::npos && !is_foreign(text.substr(0, equals))) entries_.emplace_back(text);
    }
  }
  void set(const std::string& name, const std::string& value) {
    std::erase_if(entries_, [&](const std::string& entry) { return entry.starts_with(name + "="); });
    entries_.push_back(name + "=" + value);
  }
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  std::vector<std::string> entries_;
};

/// While it lives, the signals that concern the run come out of a descriptor.
class SignalSource {
 public:
  SignalSource() {
    sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGCHLD, SIGPIPE}) sigaddset(&set_, signal);
    for (const int signal : {SIGHUP, SIGTSTP}) {
      struct sigaction action{};
      ::sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) sigaddset(&set_, signal);  // nohup ignores SIGHUP, and means it
    }
    ::sigprocmask(SIG_BLOCK, &set_, &previous_);
    ::signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would take the ranks' exit codes away
    source_ = Descriptor(::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!source_.valid()) fail("cannot watch for signals: {}", std::strerror(errno));
  }
  ~SignalSource() {
    const timespec now{};
    while (::sigtimedwait(&set_, nullptr, &now) > 0) {
    }
    ::sigprocmask(SIG_SETMASK, &previous_, nullptr);
  }
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;

  int descriptor() const { return source_.get(); }
  const sigset_t& previous_mask() const { return previous_; }
  /// The next signal, 0 if there is none.
  int next() {
    signalfd_siginfo info{};
    return ::read(source_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t set_{};
  sigset_t previous_{};
  Descriptor source_;
};

class LocalRun {
 public:
  LocalRun(int nproc, const std::vector<std::string>& command, const LocalLaunchOptions& options)
      : options_(options),
        run_id_(random_run_id()),
        server_({.world_size = nproc,
                 .run_id = run_id_,
                 .name = fmt::format("the launcher (pid {})", ::getpid()),
                 .silence_s = options.silence_s,
                 .hang_timeout_s = options.hang_timeout_s}),
        ranks_(nproc) {
    std::error_code error;
    std::filesystem::create_directories(options.log_folder, error);
    if (error) fail("cannot create the log folder {}: {}", options.log_folder.string(), error.message());
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    try {
      start(command);
    } catch (...) {
      for (Rank& rank : ranks_) {
        if (rank.pid > 0) ::kill(-rank.pid, SIGKILL);
      }
      throw;
    }
  }

  int run() {
    const auto running = [](const Rank& rank) { return !rank.ended; };
    while (std::any_of(ranks_.begin(), ranks_.end(), running) || server_.failure_pending()) {
      wait();
      for (int signal = signals_.next(); signal != 0; signal = signals_.next()) take_signal(signal);
      server_.serve();
      reap();
      pass_stop_on();
      judge();
      end_stragglers();
    }
    for (Rank& rank : ranks_) {
      for (auto& output : rank.outputs) output->close();
    }
    const std::string line = last_line();
    last_words_.show(errors_, line);
    if (!line.empty()) errors_.add("paceline: " + line + "\n");
    output_.write_all();
    errors_.write_all();
    return code();
  }

 private:
  struct Rank {
    pid_t pid = 0;
    bool ended = false;
    bool stubborn = false;  ///< killed because it did not leave when asked
    int status = 0;
    Descriptor log;
    std::vector<std::unique_ptr<RankOutput>> outputs;
  };

  void start(const std::vector<std::string>& command) {
    auto [store, port] = listen_on_free_port();
    const int nproc = static_cast<int>(ranks_.size());
    const bool threads_set = environment_variable("OMP_NUM_THREADS").has_value();
    for (int r = 0; r < nproc; ++r) {
      Rank& rank = ranks_[r];
      const auto log = log_path(r);
      rank.log = Descriptor(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
      if (!rank.log.valid()) fail("cannot open {}: {}", log.string(), std::strerror(errno));
      auto [output_read, output_write] = make_pipe();
      auto [errors_read, errors_write] = make_pipe();
      const std::string prefix = r == 0 ? "" : fmt::format("[rank {}] ", r);
      rank.outputs.push_back(
          std::make_unique<RankOutput>(std::move(output_read), rank.log.get(), r == 0 ? &output_ : nullptr, ""));
      rank.outputs.push_back(
          std::make_unique<RankOutput>(std::move(errors_read), rank.log.get(), &errors_, prefix, &last_words_));

      Variables variables;
      for (const char* name : {"RANK", "LOCAL_RANK"}) variables.set(name, std::to_string(r));
      for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) variables.set(name, std::to_string(nproc));
      variables.set("MASTER_ADDR", "127.0.0.1");
      variables.set("MASTER_PORT", std::to_string(port));
      variables.set("PACELINE_CONTROL", server_.address());
      variables.set("PACELINE_RUN_ID", run_id_);
      if (!threads_set) variables.set("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / nproc)));
      winsize size{};
      if (r == 0 && ::isatty(STDERR_FILENO) && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        variables.set("PACELINE_TERMINAL_COLUMNS", std::to_string(size.ws_col));
      }
      if (r == 0) variables.set("PACELINE_STORE_SOCKET", std::to_string(store.get()));
      for (const auto& [name, value] : options_.environment) variables.set(name, value);
      rank.pid = start_child({.command = command,
                              .environment = variables.entries(),
                              .output = output_write.get(),
                              .errors = errors_write.get(),
                              .kept = r == 0 ? store.get() : -1,
                              .signal_mask = signals_.previous_mask()});
    }
  }

  std::filesystem::path log_path(int rank) const { return options_.log_folder / fmt::format("rank_{}.log", rank); }

  void wait() {
    std::vector<pollfd> ready{{signals_.descriptor(), POLLIN, 0}, {server_.descriptor(), POLLIN, 0}};
    std::vector<RankOutput*> outputs;
    for (Rank& rank : ranks_) {
      for (auto& output : rank.outputs) {
        if (!output->open()) continue;
        outputs.push_back(output.get());
        ready.push_back({output->descriptor(), POLLIN, 0});
      }
    }
    const std::size_t streams = ready.size();
    for (ShownStream* stream : {&output_, &errors_}) {
      if (stream->has_unwritten()) ready.push_back({stream->descriptor(), POLLOUT, 0});
    }
    ::poll(ready.data(), ready.size(), 100);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (ready[streams - outputs.size() + i].revents != 0) outputs[i]->read_ready();
    }
    output_.write_ready();
    errors_.write_ready();
  }

  void signal_rank(const Rank& rank, int signal) {
    if (!rank.ended) ::kill(-rank.pid, signal);
  }

  void take_signal(int signal) {
    if (signal == SIGTSTP) {
      for (const Rank& rank : ranks_) signal_rank(rank, SIGSTOP);
      ::kill(::getpid(), SIGSTOP);
      for (const Rank& rank : ranks_) signal_rank(rank, SIGCONT);
    } else if (signal == SIGINT && stop_) {
      interrupted_twice_ = true;
      for (const Rank& rank : ranks_) signal_rank(rank, SIGKILL);
    } else if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      stop(signal == SIGINT ? StopCause::interrupt : StopCause::terminate, signal_name(signal));
    }
  }

  void stop(StopCause cause, const std::string& reason) {
    if (stop_) return;
    stop_.emplace(cause, reason);
    stop_time_ = monotonic_seconds();
    server_.stop_all(cause, reason);
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      if (!server_.connected(r)) signal_rank(ranks_[r], cause == StopCause::interrupt ? SIGINT : SIGTERM);
    }
  }

  void pass_stop_on() {
    if (const auto& asked = server_.stop_asked()) stop(asked->first, asked->second);
  }

  /// A rank that was asked to stop may leave with the stop's codes, or die of the signal before it handles it.
  bool left_well(const Rank& rank) const {
    if (rank.stubborn || interrupted_twice_) return false;
    const int code = exit_code_of(rank.status);
    return code == 0 || (stop_ && (code == 143 || code == 130));
  }

  void reap() {
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      Rank& rank = ranks_[r];
      if (rank.ended) continue;
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) continue;
      // While the leader is a zombie, the number of its group cannot be another's.
      ::kill(-rank.pid, SIGKILL);
      ::waitpid(rank.pid, &rank.status, 0);
      rank.ended = true;
      std::string how;
      if (rank.stubborn) {
        how = fmt::format("it did not leave within {:.3g} s of {} and was killed", options_.grace_s, stop_->second);
      } else if (!left_well(rank)) {
        how = exit_text(rank.status);
      }
      server_.note_exit(r, rank.pid, how);
    }
    // Orphans of the ranks are ours to bury, as subreaper.
    for (const Rank& rank : ranks_) {
      if (!rank.ended) return;
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }

  void judge() {
    if (failure_) return;
    failure_ = server_.first_failure();
    if (!failure_) return;
    end_time_ = monotonic_seconds();
    server_.end_all(failure_->reason, static_cast<int>(ExitCode::failure));
    server_.serve();
    if (failure_->kind == RankFailure::Kind::silent || failure_->kind == RankFailure::Kind::stalled) {
      signal_rank(ranks_[failure_->rank], SIGKILL);
    }
  }

  void end_stragglers() {
    const double now = monotonic_seconds();
    if (failure_) {
      const double since = now - end_time_;
      if (since > kill_after_s) {
        for (const Rank& rank : ranks_) signal_rank(rank, SIGKILL);
      } else if (since > terminate_after_s && !terminated_) {
        terminated_ = true;
        for (const Rank& rank : ranks_) signal_rank(rank, SIGTERM);
      }
    } else if (stop_) {
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        Rank& rank = ranks_[r];
        const double idle = std::min(now - stop_time_, server_.seconds_without_progress(r));
        if (rank.ended || rank.stubborn || idle <= options_.grace_s) continue;
        rank.stubborn = true;
        signal_rank(rank, SIGKILL);
      }
    }
  }

  std::string last_line() const {
    if (interrupted_twice_) return "killed all ranks on the second SIGINT";
    if (!failure_) return stop_ ? fmt::format("all ranks left after {}", stop_->second) : "";
    const Rank& rank = ranks_[failure_->rank];
    const std::string doing = server_.activity(failure_->rank);
    const std::string log = fmt::format("; its log: {}", log_path(failure_->rank).string());
    if (failure_->kind != RankFailure::Kind::exited || rank.stubborn || exit_code_of(rank.status) == 0) {
      return failure_->reason + (failure_->kind == RankFailure::Kind::deadlock ? "" : log);
    }
    return fmt::format("rank {} {}{}{}", failure_->rank,
                       WIFSIGNALED(rank.status) ? "was " + exit_text(rank.status)
                                                : fmt::format("failed with {}", exit_text(rank.status)),
                       doing.empty() ? "" : " in " + doing, log);
  }

  int code() const {
    if (interrupted_twice_) return stop_exit_code(StopCause::interrupt);
    if (!failure_) return stop_ ? stop_exit_code(stop_->first) : 0;
    const bool own_end = failure_->kind == RankFailure::Kind::exited || failure_->kind == RankFailure::Kind::reported;
    const int code = own_end ? exit_code_of(ranks_[failure_->rank].status) : 0;
    return code != 0 ? code : static_cast<int>(ExitCode::failure);
  }

  const LocalLaunchOptions& options_;
  SignalSource signals_;
  std::string run_id_;
  ControlServer server_;
  ShownStream output_{STDOUT_FILENO};
  ShownStream errors_{STDERR_FILENO};
  LastWords last_words_;
  std::vector<Rank> ranks_;
  std::optional<std::pair<StopCause, std::string>> stop_;
  std::optional<RankFailure> failure_;
  double stop_time_ = 0;
  double end_time_ = 0;
  bool terminated_ = false;
  bool interrupted_twice_ = false;
};

}  // namespace

int launch_local(int nproc, const std::vector<std::string>& command, const LocalLaunchOptions& options) {
  if (nproc < 1 || nproc > 1024) refuse("{} ranks on one machine: give a number from 1 to 1024", nproc);
  return LocalRun(nproc, command, options).run();
}

}  // namespace paceline
