#include "paceline/supervision/local_launcher.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "paceline/base/error.h"
#include "test_process.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Variables = std::map<std::string, std::string>;

class LocalLauncher : public testing::Test {
 protected:
  /// All ranks at work.
  void start(int nproc, Variables variables = {}) {
    variables["TEST_NPROC"] = std::to_string(nproc);
    run_.emplace("launcher", folder_, variables);
    for (int rank = 0; rank < nproc; ++rank) pids_.push_back(rank_pid(folder_, rank));
  }
  void go() { std::ofstream(folder_ / "go") << "\n"; }
  /// The launcher's exit code; it and everything that it started must be gone within 10 s.
  int code() {
    const auto code = run_->wait(10);
    EXPECT_TRUE(code) << "still running\n" << run_->errors();
    EXPECT_THAT(processes_of(folder_.path()), IsEmpty());
    return code.value_or(-1);
  }
  std::string log(int rank) { return read_text(folder_ / fmt::format("logs/rank_{}.log", rank)); }
  bool saved(int rank) { return std::filesystem::exists(folder_ / fmt::format("saved_{}", rank)); }

  TestFolder folder_;
  std::optional<TestProcess> run_;
  std::vector<pid_t> pids_;
};

TEST_F(LocalLauncher, AllFinish) {
  start(3, {{"TEST_FAULT", "-1 end"}});
  go();
  EXPECT_EQ(code(), 0);
  EXPECT_THAT(run_->output(), AllOf(HasSubstr("rank 0 works"), Not(HasSubstr("rank 1 works"))));
  EXPECT_THAT(run_->errors(), AllOf(HasSubstr("warning of rank 0\n"), HasSubstr("[rank 1] warning of rank 1\n"),
                                    HasSubstr("[rank 2] warning of rank 2\n"), Not(HasSubstr("paceline:"))));
  EXPECT_THAT(run_->errors(), Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(log(0), AllOf(HasSubstr("rank 0 works"), HasSubstr("warning of rank 0")));
  EXPECT_THAT(log(2), AllOf(HasSubstr("rank 2 works"), HasSubstr("warning of rank 2")));
}

TEST_F(LocalLauncher, AKilledRankIsNamedByAll) {
  start(4);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // a heartbeat or two
  ::kill(pids_[1], SIGKILL);
  EXPECT_EQ(code(), 128 + SIGKILL);
  const std::string gone = fmt::format("paceline: rank 1 (pid {}) is gone: killed by SIGKILL; ending rank ", pids_[1]);
  for (const int rank : {0, 2, 3}) {
    EXPECT_THAT(log(rank), HasSubstr(gone + std::to_string(rank))) << rank;
    EXPECT_THAT(run_->errors(), HasSubstr((rank ? fmt::format("[rank {}] ", rank) : "") + gone + std::to_string(rank)));
  }
  EXPECT_THAT(run_->last_line(), AllOf(StartsWith("paceline: rank 1 was killed by SIGKILL in step "),
      HasSubstr("backward 3"),
                                       EndsWith("rank_1.log")));
  EXPECT_FALSE(saved(0));
}

TEST_F(LocalLauncher, RankZeroMayBeTheOne) {
  start(2);
  ::kill(pids_[0], SIGKILL);
  EXPECT_EQ(code(), 137);
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 0 was killed by SIGKILL"));
}

TEST_F(LocalLauncher, AFrozenRankIsNamed) {
  start(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // a heartbeat or two
  ::kill(pids_[2], SIGSTOP);
  EXPECT_EQ(code(), 1);
  EXPECT_THAT(run_->last_line(), AllOf(HasSubstr(fmt::format("rank 2 (pid {}) hangs: no heartbeat for 5 s", pids_[2])),
      HasSubstr("step ")));
  EXPECT_THAT(log(0), HasSubstr("hangs: no heartbeat for 5 s"));
}

TEST_F(LocalLauncher, CrashesAreNamedBySignal) {
  start(2, {{"TEST_FAULT", "1 segv"}});
  go();
  EXPECT_EQ(code(), 128 + SIGSEGV);
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 1 was killed by SIGSEGV"));
}

TEST_F(LocalLauncher, AbortIsNamed) {
  start(2, {{"TEST_FAULT", "0 abort"}});
  go();
  EXPECT_EQ(code(), 128 + SIGABRT);
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 0 was killed by SIGABRT"));
}

TEST_F(LocalLauncher, AnExitCodeIsPassedOn) {
  start(2, {{"TEST_FAULT", "1 exit3"}});
  go();
  EXPECT_EQ(code(), 3);
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 1 failed with exit code 3"));
}

TEST_F(LocalLauncher, ARankThatLeavesEarlyIsAFailure) {
  start(2, {{"TEST_FAULT", "1 leave"}});
  go();
  EXPECT_EQ(code(), 1);
  EXPECT_THAT(run_->last_line(), HasSubstr("is gone: it left before the run was finished"));
}

TEST_F(LocalLauncher, WhatARankReportsIsTheLastLine) {
  start(2, {{"TEST_FAULT", "1 throw"}});
  go();
  EXPECT_EQ(code(), 1);
  EXPECT_THAT(run_->last_line(), HasSubstr(fmt::format("rank 1 (pid {}) failed: the disk is full", pids_[1])));
  EXPECT_THAT(log(0), HasSubstr("failed: the disk is full; ending rank 0"));
}

TEST_F(LocalLauncher, ARefusalBeforeTheRanksMeet) {
  run_.emplace("launcher", folder_, Variables{{"TEST_NPROC", "2"}, {"TEST_FAULT", "1 refuse"}});
  EXPECT_EQ(code(), 2);
  EXPECT_THAT(run_->errors(), HasSubstr("[rank 1] error: parallel.tp=3 does not divide the 4 heads"));
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 1 failed with exit code 2"));
}

TEST_F(LocalLauncher, AHungMainThreadIsNamedNotItsWaiters) {
  start(3, {{"TEST_FAULT", "1 hang"}, {"TEST_HANG_S", "1.5"}});
  go();
  EXPECT_EQ(code(), 1);
  EXPECT_THAT(run_->last_line(), AllOf(HasSubstr(fmt::format("rank 1 (pid {}) hangs: no progress for 1.5 s", pids_[1])),
                                       HasSubstr("backward 3")));
}

TEST_F(LocalLauncher, SigtermSavesAndLeaves) {
  start(3);
  run_->signal(SIGTERM);
  EXPECT_EQ(code(), 143);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(saved(rank)) << rank;
  EXPECT_EQ(run_->last_line(), "paceline: all ranks left after SIGTERM");
}

TEST_F(LocalLauncher, SigintSavesAndLeaves) {
  start(2);
  run_->signal(SIGINT);
  EXPECT_EQ(code(), 130);
  EXPECT_TRUE(saved(0) && saved(1));
}

TEST_F(LocalLauncher, SigtermToOneRankStopsAll) {
  start(3);
  ::kill(pids_[1], SIGTERM);
  EXPECT_EQ(code(), 143);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(saved(rank)) << rank;
  EXPECT_EQ(run_->last_line(), "paceline: all ranks left after SIGTERM at rank 1");
}

TEST_F(LocalLauncher, ATimeLimitStopsAll) {
  start(2, {{"TEST_MAX_SECONDS", "1"}});
  EXPECT_EQ(code(), 143);
  EXPECT_TRUE(saved(0) && saved(1));
  EXPECT_THAT(run_->last_line(), HasSubstr("all ranks left after the time limit"));
}

TEST_F(LocalLauncher, AStubbornRankIsKilledAfterTheGrace) {
  start(2, {{"TEST_FAULT", "1 stubborn"}, {"TEST_GRACE_S", "1"}});
  run_->signal(SIGTERM);
  EXPECT_EQ(code(), 137);
  EXPECT_THAT(run_->last_line(), AllOf(HasSubstr("rank 1"),
      HasSubstr("did not leave within 1 s of SIGTERM and was killed")));
}

TEST_F(LocalLauncher, TheSecondSigintKillsAtOnce) {
  start(2, {{"TEST_FAULT", "1 stubborn"}});
  run_->signal(SIGINT);
  EXPECT_TRUE(wait_until(5, [&] { return saved(0); }));
  run_->signal(SIGINT);
  EXPECT_EQ(run_->wait(2), 130);
  EXPECT_EQ(code(), 130);
}

TEST_F(LocalLauncher, ADeathDuringTheStopIsAFailure) {
  start(2, {{"TEST_FAULT", "1 stubborn"}});
  run_->signal(SIGTERM);
  EXPECT_TRUE(wait_until(5, [&] { return saved(0); }));
  ::kill(pids_[1], SIGSEGV);
  EXPECT_EQ(code(), 128 + SIGSEGV);
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 1 was killed by SIGSEGV"));
}

TEST_F(LocalLauncher, TheRanksDieWithTheLauncher) {
  start(3);
  run_->signal(SIGKILL);
  EXPECT_EQ(run_->wait(5), 137);
  EXPECT_TRUE(wait_until(5, [&] { return processes_of(folder_.path()).empty(); }));
}

TEST_F(LocalLauncher, APausedRunGoesOn) {
  start(2, {{"TEST_FAULT", "-1 end"}, {"TEST_SILENCE_S", "2.2"}});
  run_->signal(SIGTSTP);  // Ctrl-Z
  std::this_thread::sleep_for(std::chrono::milliseconds(3000));
  EXPECT_EQ(run_->wait(0.1), std::nullopt);
  run_->signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  go();
  EXPECT_EQ(code(), 0);
}

TEST_F(LocalLauncher, StrangersAtTheControlPort) {
  start(2, {{"TEST_FAULT", "-1 end"}});
  const std::string environment = read_text(fmt::format("/proc/{}/environ", pids_[1]));
  const auto at = environment.find("PACELINE_CONTROL=") + 17;
  const auto [host, port] = parse_address(environment.c_str() + at);
  EXPECT_EQ(host, "127.0.0.1");
  for (const std::string& bytes : {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(1 << 20, '\xff'), std::string(8,
      '\0')}) {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  go();
  EXPECT_EQ(code(), 0);
}

TEST_F(LocalLauncher, TwoRunsAtOnceDoNotMeet) {
  start(2, {{"TEST_FAULT", "-1 end"}});
  std::filesystem::create_directories(folder_ / "second");
  TestProcess second("launcher", folder_, {{"TEST_NPROC", "2"}, {"TEST_ROLE", "plain"}}, "second/run");
  EXPECT_EQ(second.wait(10), 0);
  const auto variable = [&](int rank, const std::string& name) {
    const std::string environment = read_text(fmt::format("/proc/{}/environ", pids_[rank]));
    const auto at = environment.find(name + "=");
    return std::string(environment.c_str() + at + name.size() + 1);
  };
  EXPECT_EQ(variable(0, "MASTER_PORT"), variable(1, "MASTER_PORT"));
  EXPECT_NE(variable(0, "MASTER_PORT"), variable(0, "PACELINE_CONTROL").substr(10));
  EXPECT_EQ(variable(1, "PACELINE_RUN_ID").size(), 32U);
  go();
  EXPECT_EQ(code(), 0);
}

TEST_F(LocalLauncher, ProgramsWithoutSupervision) {
  run_.emplace("launcher", folder_,
               Variables{{"TEST_NPROC", "2"}, {"TEST_ROLE", "plain"}, {"OMPI_COMM_WORLD_RANK", "7"}, {"SLURM_PROCID",
                   "7"}});
  EXPECT_EQ(code(), 0);
  EXPECT_THAT(run_->output(), HasSubstr("plain 0 of 2 given yes foreign \n"));
  EXPECT_THAT(log(1), HasSubstr("plain 1 of 2"));
}

TEST_F(LocalLauncher, NothingIsLeftOfAFailedRankNorOfItsChildren) {
  run_.emplace("launcher", folder_,
               Variables{{"TEST_NPROC", "3"}, {"TEST_ROLE", "plain"}, {"TEST_FAILING", "2"}, {"TEST_SLEEPER", "1"}});
  EXPECT_EQ(code(), 5);
  EXPECT_THAT(run_->last_line(), HasSubstr("rank 2 failed with exit code 5"));
}

TEST_F(LocalLauncher, ThreadsAreShared) {
  start(2, {{"TEST_FAULT", "-1 end"}, {"OMP_NUM_THREADS", "7"}});
  go();
  EXPECT_EQ(code(), 0);
  EXPECT_THAT(log(1), HasSubstr("works with 7 threads"));
}

TEST_F(LocalLauncher, WhatCannotBeExecutedIsSaid) {
  run_.emplace("launcher", folder_, Variables{{"TEST_NPROC", "2"}, {"TEST_BIG", "1"}});
  EXPECT_EQ(code(), 127);
  EXPECT_THAT(run_->errors(), HasSubstr("cannot execute /proc/self/exe as a rank"));
  EXPECT_THAT(run_->last_line(), HasSubstr("failed with exit code 127"));
}

TEST_F(LocalLauncher, AViewerThatDoesNotReadHoldsNothingUp) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Descriptor read_end(ends[0]), write_end(ends[1]);
  run_.emplace("launcher", folder_, Variables{{"TEST_NPROC", "2"}, {"TEST_FAULT", "-1 chatter"}}, "run",
      write_end.get());
  write_end.reset();
  go();
  EXPECT_TRUE(wait_until(10, [&] { return processes_of(folder_.path()) == std::vector<pid_t>{run_->pid()}; }));
  std::string all;
  char block[65536];
  for (ssize_t got; (got = ::read(read_end.get(), block, sizeof block)) > 0;) all.append(block,
      static_cast<std::size_t>(got));
  EXPECT_EQ(code(), 0);
  EXPECT_THAT(all, HasSubstr(std::string(300000, 'x') + "end of chatter\n"));
  EXPECT_THAT(log(0), HasSubstr("xend of chatter\n"));
}

TEST_F(LocalLauncher, AViewerThatLeavesEndsNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Descriptor read_end(ends[0]), write_end(ends[1]);
  run_.emplace("launcher", folder_, Variables{{"TEST_NPROC", "2"}, {"TEST_FAULT", "-1 chatter"}}, "run",
      write_end.get());
  write_end.reset();
  rank_pid(folder_, 1);
  read_end.reset();
  go();
  EXPECT_EQ(code(), 0);
  EXPECT_THAT(log(0), HasSubstr("xend of chatter\n"));
}

TEST_F(LocalLauncher, AnImpossibleNumberOfRanksIsRefused) {
  EXPECT_THROW(launch_local(0, {"x"}, {}), Error);
  EXPECT_THROW(launch_local(100000, {"x"}, {}), Error);
}

}  // namespace
}  // namespace paceline
