#include "paceline/supervision/peer_supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/base/error.h"
#include "test_process.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// Ranks started as torchrun would: one process each, nobody above them.
class PeerSupervision : public testing::Test {
 protected:
  void start(int world_size, std::map<std::string, std::string> variables = {}) {
    for (int rank = 0; rank < world_size; ++rank) {
      variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
      variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
      variables["MASTER_ADDR"] = "127.0.0.1";
      variables["MASTER_PORT"] = "29500";
      ranks_.push_back(std::make_unique<TestProcess>("rank", folder_, variables, fmt::format("rank_{}", rank)));
    }
    for (int rank = 0; rank < world_size; ++rank) pids_.push_back(rank_pid(folder_, rank));
    begin_ = monotonic_seconds();
  }
  void go() { std::ofstream(folder_ / "go") << "\n"; }
  std::optional<int> code(int rank) { return ranks_[rank]->wait(begin_ + 10 - monotonic_seconds()); }
  std::string errors(int rank) { return ranks_[rank]->errors(); }

  TestFolder folder_;
  std::vector<std::unique_ptr<TestProcess>> ranks_;
  std::vector<pid_t> pids_;
  double begin_ = 0;
};

TEST_F(PeerSupervision, AllFinish) {
  start(3, {{"TEST_FAULT", "-1 end"}});
  go();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(code(rank), 0) << errors(rank);
    EXPECT_THAT(errors(rank), testing::Not(HasSubstr("ending")));
  }
}

TEST_F(PeerSupervision, AKilledRankIsNamedByTheOthers) {
  start(3);
  ::kill(pids_[1], SIGKILL);
  EXPECT_EQ(code(0), 1);
  EXPECT_EQ(code(2), 1);
  const std::string gone = fmt::format("rank 1 (pid {}) is gone: its connection closed", pids_[1]);
  EXPECT_THAT(errors(0), HasSubstr(gone + "; ending rank 0"));
  EXPECT_THAT(errors(2), HasSubstr(gone + "; ending rank 2"));
}

TEST_F(PeerSupervision, ADeadRankZeroIsNamedByAll) {
  start(3);
  ::kill(pids_[0], SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(code(rank), 1);
    EXPECT_THAT(errors(rank), HasSubstr(fmt::format("rank 0 (pid {}), which supervises the run, is gone", pids_[0])));
  }
}

TEST_F(PeerSupervision, AFrozenRankZeroIsNamedByAll) {
  start(3, {{"TEST_SILENCE_S", "2"}});
  ::kill(pids_[0], SIGSTOP);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(code(rank), 1);
    EXPECT_THAT(errors(rank), HasSubstr(fmt::format("rank 0 (pid {}), which supervises the run, hangs", pids_[0])));
  }
  ::kill(pids_[0], SIGCONT);
  EXPECT_EQ(ranks_[0]->wait(10), 1);
}

TEST_F(PeerSupervision, AFrozenRankIsNamedAndEndsWhenItWakes) {
  start(3, {{"TEST_SILENCE_S", "2"}});
  ::kill(pids_[2], SIGSTOP);
  EXPECT_EQ(code(0), 1);
  EXPECT_EQ(code(1), 1);
  EXPECT_THAT(errors(1), HasSubstr(fmt::format("rank 2 (pid {}) hangs: no heartbeat", pids_[2])));
  ::kill(pids_[2], SIGCONT);
  EXPECT_EQ(ranks_[2]->wait(5), 1);
}

TEST_F(PeerSupervision, AReportEndsTheOthers) {
  for (const std::string faulty : {"0", "1"}) {
    ranks_.clear();
    pids_.clear();
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path());
    start(2, {{"TEST_FAULT", faulty + " throw"}});
    go();
    EXPECT_EQ(code(0), 1);
    EXPECT_EQ(code(1), 1);
    EXPECT_THAT(errors(faulty == "0" ? 1 : 0), HasSubstr(fmt::format("rank {} (pid {}) failed: the disk is full",
        faulty, pids_[faulty == "1"])));
    EXPECT_THAT(errors(faulty == "0" ? 0 : 1), testing::Not(HasSubstr("ending")));
  }
}

TEST_F(PeerSupervision, AHungRankZeroIsNamed) {
  start(2, {{"TEST_FAULT", "0 hang"}, {"TEST_HANG_S", "1.5"}});
  go();
  EXPECT_EQ(code(0), 1);
  EXPECT_EQ(code(1), 1);
  EXPECT_THAT(errors(1), AllOf(HasSubstr(fmt::format("rank 0 (pid {}) hangs: no progress for 1.5 s", pids_[0])),
      HasSubstr("backward 3")));
}

TEST_F(PeerSupervision, SigtermToOneStopsAll) {
  start(3);
  ranks_[2]->signal(SIGTERM);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(code(rank), 143) << errors(rank);
    EXPECT_TRUE(std::filesystem::exists(folder_ / fmt::format("saved_{}", rank)));
  }
}

TEST_F(PeerSupervision, OneRankNeedsNone) {
  StopRequest stop;
  RankSupervision alone({}, {}, stop, {}, [](const char*) { return std::nullopt; });
  alone.activity().begin("step", 1);
  EXPECT_EQ(alone.activity().text(), "step 1, step");
  EXPECT_FALSE(alone.launcher_exchange());
  alone.report_failure("nobody listens");
  alone.finish();
}

TEST_F(PeerSupervision, HalfOfTheLaunchersVariablesIsRefused) {
  StopRequest stop;
  const auto variable = [](const char* name) -> std::optional<std::string> {
    return std::string(name) == "PACELINE_CONTROL" ? std::optional<std::string>("127.0.0.1:1") : std::nullopt;
  };
  EXPECT_THROW(RankSupervision({}, {}, stop, {}, variable), Error);
}

TEST_F(PeerSupervision, AnUnknownMasterIsNamed) {
  try {
    reachable_address("no-such-host.invalid");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("MASTER_ADDR=no-such-host.invalid"));
  }
}

}  // namespace
}  // namespace paceline
