#include "paceline/comm/gloo_communicator.h"

#include "paceline/base/error.h"
#include "paceline/comm/communicator_set.h"
#include "paceline/comm/network_address.h"
#include "paceline/comm/shared_memory_transport.h"
#include "paceline/comm/thread_communicator.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <filesystem>
#include <sstream>
#include <thread>

namespace paceline {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

/// Sets an environment variable for the length of a scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* name_;
};

/// What each of several ranks, threads that join over the given port, throws; empty where it joined.
std::vector<std::string> outcomes(const std::vector<GlooOptions>& ranks) {
  std::vector<std::string> texts(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const auto transport = connect_gloo(ranks[i]);
        CommunicatorSet(transport, Layout{.dp = ranks[i].world_size}).world().barrier();
      } catch (const std::exception& error) {
        texts[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

TEST(ConnectGloo, AWorldOfOneNeedsNoPort) {
  CommunicatorSet set(connect_gloo({.run_id = "alone"}), Layout{});
  at::Tensor value = at::full({2}, 3.0);
  set.world().all_reduce(value, ReduceOp::sum);
  EXPECT_EQ(value[0].item<float>(), 3);
}

TEST(ConnectGloo, TwoRunsAtOnceEachBindAFreePort) {
  std::vector<GlooOptions> ranks;
  for (const char* run : {"first", "second"}) {
    ListeningSocket socket = listen_as_master("127.0.0.1", 0);
    const int port = socket.port();
    ranks.push_back({.rank = 0, .world_size = 2, .master_port = port, .listening_descriptor = socket.release(),
                     .run_id = run, .connect_timeout = 20s});
    ranks.push_back({.rank = 1, .world_size = 2, .master_port = port, .run_id = run, .connect_timeout = 20s});
  }
  EXPECT_NE(ranks[0].master_port, ranks[2].master_port);
  EXPECT_EQ(outcomes(ranks), std::vector<std::string>(4));
}

TEST(ConnectGloo, ATakenPortIsNamed) {
  const ListeningSocket stranger = listen_as_master("127.0.0.1", 0);
  EXPECT_THAT([&] { connect_gloo({.world_size = 2, .master_port = stranger.port(), .run_id = "x"}); },
              ThrowsMessage<Error>(AllOf(HasSubstr("MASTER_PORT=" + std::to_string(stranger.port())),
                                         HasSubstr("taken"))));
}

TEST(ConnectGloo, AStrangerOnThePortIsNotWaitedForLongerThanTheLimit) {
  const ListeningSocket stranger = listen_as_master("127.0.0.1", 0);
  const auto begin = steady_clock::now();
  EXPECT_THAT([&] {
    connect_gloo({.rank = 1, .world_size = 2, .master_port = stranger.port(), .run_id = "x", .connect_timeout = 1s});
  }, ThrowsMessage<Error>(HasSubstr("MASTER_PORT=" + std::to_string(stranger.port()))));
  EXPECT_LT(seconds_since(begin), 6);
}

TEST(ConnectGloo, AnotherRunIsRefusedAndGoesOnUndisturbed) {
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  const auto rank_of = [&](int rank, const char* run) {
    return GlooOptions{.rank = rank, .world_size = 2, .master_port = port, .run_id = run, .connect_timeout = 20s};
  };
  std::string intruder;
  std::thread late([&] { intruder = outcomes({rank_of(1, "second")})[0]; });
  // The first run's rank 1 comes once the intruder was turned away.
  std::string second;
  std::thread member([&] {
    late.join();
    second = outcomes({rank_of(1, "first")})[0];
  });
  GlooOptions master = rank_of(0, "first");
  master.listening_descriptor = socket.release();
  EXPECT_EQ(outcomes({master})[0], "");
  member.join();
  EXPECT_EQ(second, "");
  EXPECT_THAT(intruder, AllOf(HasSubstr("belongs to another run ('first', not 'second')"),
                              HasSubstr("MASTER_PORT=" + std::to_string(port))));
}

TEST(ConnectGloo, ARankThatDoesNotComeIsNamed) {
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  const auto begin = steady_clock::now();
  const auto texts = outcomes({{.rank = 0, .world_size = 4, .master_port = port,
                                .listening_descriptor = socket.release(), .run_id = "x", .connect_timeout = 2s},
                               {.rank = 2, .world_size = 4, .master_port = port, .run_id = "x",
                                .connect_timeout = 1s}});
  EXPECT_LT(seconds_since(begin), 8);
  EXPECT_THAT(texts[0], HasSubstr("ranks 1, 3 of run 'x' did not come within 2 s"));
  EXPECT_THAT(texts[1], HasSubstr("ranks 1, 3 of run 'x' did not come within 1 s"));
}

TEST(ConnectGloo, TwoProcessesOfOneRankAreRefused) {
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  const GlooOptions twin{.rank = 1, .world_size = 2, .master_port = port, .run_id = "x", .connect_timeout = 20s};
  GlooOptions master = twin;
  master.rank = 0;
  master.listening_descriptor = socket.release();
  const auto texts = outcomes({master, twin, twin});
  EXPECT_EQ(texts[0], "");
  EXPECT_THAT(texts[1] + texts[2], HasSubstr("two processes of run 'x' say that they are rank 1"));
  EXPECT_TRUE(texts[1].empty() || texts[2].empty());
}

TEST(ConnectGloo, AnUnknownMasterIsNamedWithinSeconds) {
  const auto begin = steady_clock::now();
  for (const int rank : {0, 1}) {
    EXPECT_THAT([&] {
      connect_gloo({.rank = rank, .world_size = 2, .master_address = "no-such-host.invalid", .master_port = 29517,
                    .run_id = "x"});
    }, ThrowsMessage<Error>(HasSubstr("MASTER_ADDR='no-such-host.invalid' cannot be resolved")));
  }
  EXPECT_LT(seconds_since(begin), 30);
}

TEST(ConnectGloo, AMasterThatDoesNotListenIsNamed) {
  int port = 0;
  { port = listen_as_master("127.0.0.1", 0).port(); }
  EXPECT_THAT([&] {
    connect_gloo({.rank = 1, .world_size = 2, .master_port = port, .run_id = "x", .connect_timeout = 300ms});
  }, ThrowsMessage<Error>(AllOf(HasSubstr("nobody answers at MASTER_ADDR='127.0.0.1'"), HasSubstr("after 0.3 s"))));
}

TEST(ConnectGloo, InterfacesAreThoseThatExist) {
  for (const char* wrong : {"^lo,docker", "eth9", "", "lo,eth9"}) {
    const ScopedVariable variable("GLOO_SOCKET_IFNAME", wrong);
    EXPECT_THAT([] { connect_gloo({.run_id = "x"}); },
                ThrowsMessage<Error>(AllOf(HasSubstr(std::string("GLOO_SOCKET_IFNAME='") + wrong + "'"),
                                           HasSubstr("this machine has"), HasSubstr("lo"))));
  }
  const ScopedVariable variable("GLOO_SOCKET_IFNAME", "lo");
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  EXPECT_EQ(outcomes({{.rank = 0, .world_size = 2, .master_port = port, .listening_descriptor = socket.release(),
                       .run_id = "x", .connect_timeout = 20s},
                      {.rank = 1, .world_size = 2, .master_port = port, .run_id = "x", .connect_timeout = 20s}}),
            std::vector<std::string>(2));
}

TEST(GlooTransport, AReceiveEndsAtItsTimeLimitNamingTheRank) {
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  run_ranks(2, [&](int rank, Hub&) {
    const auto transport = connect_gloo({.rank = rank, .world_size = 2, .master_port = port,
                                         .listening_descriptor = rank == 0 ? socket.release() : -1, .run_id = "x",
                                         .timeout = 300ms});
    if (rank == 1) return std::this_thread::sleep_for(600ms);
    int value = 0;
    EXPECT_THAT([&] { transport->receive_start(&value, sizeof(value), 1, 5)->wait(); },
                ThrowsMessage<Error>(HasSubstr("rank 1 did not answer for 0.3 s")));
  });
}

/// One rank as a process of its own: this program again, running the disabled test below.
class RankProcess {
 public:
  RankProcess(int rank, int world_size, int port, const std::string& folder, bool shares_memory)
      : output_(folder + "/rank" + std::to_string(rank)) {
    const std::vector<std::string> variables = {"TEST_RANK=" + std::to_string(rank),
                                                "TEST_WORLD_SIZE=" + std::to_string(world_size),
                                                "TEST_PORT=" + std::to_string(port), "TEST_OUTPUT=" + output_,
                                                shares_memory ? "TEST_SHARES_MEMORY=1" : "TEST_NETWORK=1"};
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    for (const std::string& variable : variables) environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    const char* arguments[] = {"comm_tests", "--gtest_filter=RankProcess.DISABLED_Main",
                               "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    EXPECT_EQ(posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments),
                          environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~RankProcess() {
    if (running_) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
    }
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  void send_signal(int signal) { kill(process_, signal); }
  bool wait_for_end(std::chrono::milliseconds limit) {
    const auto deadline = steady_clock::now() + limit;
    while (steady_clock::now() < deadline) {
      if (waitpid(process_, nullptr, WNOHANG) == process_) {
        running_ = false;
        return true;
      }
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }
  std::string output() const {
    std::ostringstream text;
    text << std::ifstream(output_).rdbuf();
    return text.str();
  }

 private:
  std::string output_;
  pid_t process_ = -1;
  bool running_ = true;
};

/// The rank of the test below: rank 0 receives from rank 2, rank 1 sums with everyone, rank 2 does nothing.
TEST(RankProcess, DISABLED_Main) {
  std::ofstream output(std::getenv("TEST_OUTPUT"));
  try {
    const int rank = std::atoi(std::getenv("TEST_RANK"));
    auto transport = connect_gloo({.rank = rank, .world_size = std::atoi(std::getenv("TEST_WORLD_SIZE")),
                                   .master_port = std::atoi(std::getenv("TEST_PORT")), .run_id = "processes",
                                   .connect_timeout = 60s});
    if (std::getenv("TEST_SHARES_MEMORY") != nullptr) transport = share_memory(transport, 60s);
    CommunicatorSet set(std::move(transport), Layout{.dp = 3});
    set.world().barrier();
    output << "joined\n" << std::flush;
    at::Tensor value = at::zeros({5});
    if (rank == 0) set.world().receive(value, 2, 0);
    if (rank == 1) set.world().all_reduce(value, ReduceOp::sum);
    if (rank == 2) pause();
    output << "returned\n";
  } catch (const std::exception& error) {
    output << error.what() << '\n';
  }
}

class KilledRank : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Backends, KilledRank, testing::Bool(),
                         [](const auto& info) { return info.param ? "SharedMemory" : "Gloo"; });

TEST_P(KilledRank, EndsTheOthersWhichNameIt) {
  const std::string folder = testing::TempDir() + "paceline_ranks_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  {
    int port = 0;
    { port = listen_as_master("127.0.0.1", 0).port(); }
    RankProcess zero(0, 3, port, folder, GetParam());
    RankProcess one(1, 3, port, folder, GetParam());
    RankProcess two(2, 3, port, folder, GetParam());
    const auto begin = steady_clock::now();
    for (const RankProcess* process : {&zero, &one, &two}) {
      while (process->output().find("joined") == std::string::npos && seconds_since(begin) < 60) {
        std::this_thread::sleep_for(10ms);
      }
      ASSERT_EQ(process->output(), "joined\n");
    }
    std::this_thread::sleep_for(100ms);
    two.send_signal(SIGKILL);
    EXPECT_TRUE(zero.wait_for_end(10s));
    EXPECT_TRUE(one.wait_for_end(10s));
    EXPECT_THAT(zero.output(), HasSubstr("receive from rank 2 in group 'world', tag 0: rank 2 is gone"));
    // Rank 1 talks to rank 0 alone in this sum, and learns of its end.
    EXPECT_THAT(one.output(), HasSubstr("all_reduce in group 'world' (ranks 0, 1, 2): rank 0 is gone"));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace paceline
