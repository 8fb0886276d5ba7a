#include "paceline/supervision/control_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "paceline/base/error.h"
#include "paceline/supervision/control_client.h"

namespace paceline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string run_id = "0123456789abcdef";

/// A server with an owner that does what the local launcher does.
class RunningServer {
 public:
  explicit RunningServer(ControlServerOptions options) : server_(prepare(std::move(options))),
      thread_([this] { run(); }) {}
  ~RunningServer() {
    leave_ = true;
    thread_.join();
  }
  std::string address() const { return server_.address(); }
  template <typename Function>
  auto with(Function function) {
    const std::lock_guard lock(mutex_);
    return function(server_);
  }
  std::optional<RankFailure> wait_for_failure(double seconds) {
    const double end = monotonic_seconds() + seconds;
    while (monotonic_seconds() < end) {
      if (auto failure = with([](ControlServer& server) { return server.first_failure(); })) return failure;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return std::nullopt;
  }

 private:
  static ControlServerOptions prepare(ControlServerOptions options) {
    options.run_id = run_id;
    options.name = "the test";
    return options;
  }
  void run() {
    while (!leave_) {
      pollfd ready{server_.descriptor(), POLLIN, 0};
      ::poll(&ready, 1, 20);
      const std::lock_guard lock(mutex_);
      server_.serve();
      if (const auto& asked = server_.stop_asked()) server_.stop_all(asked->first, asked->second);
      if (const auto failure = server_.first_failure()) server_.end_all(failure->reason, 1);
    }
  }

  std::mutex mutex_;
  std::atomic<bool> leave_{false};
  ControlServer server_;
  std::thread thread_;
};

/// A client that only notes what it is told.
class NotedClient {
 public:
  NotedClient(const RunningServer& server, int rank, double silence_s = 5)
      : client({.address = server.address(),
                .run_id = run_id,
                .rank = rank,
                .beat_s = 0.05,
                .silence_s = silence_s,
                .on_end = [this](const std::string& reason, int) { note(end_, reason); },
                .on_stop = [this](StopCause, const std::string& reason) { note(stop_, reason); }}) {}
  std::string end(double seconds = 3) { return wait(end_, seconds); }
  std::string stop(double seconds = 3) { return wait(stop_, seconds); }

 private:
  void note(std::string& where, const std::string& what) {
    const std::lock_guard lock(mutex_);
    where = what;
    changed_.notify_all();
  }
  std::string wait(const std::string& where, double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !where.empty(); });
    return where;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string end_, stop_;

 public:
  ControlClient client;
};

/// A stranger's socket. Everything it does is bounded in time.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto [host, port] = parse_address(address);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, host.c_str(), &to.sin_addr);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  void send(const std::string& bytes) { ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send_message(const std::string& text) {
    const std::uint32_t size = htonl(static_cast<std::uint32_t>(text.size()));
    send(std::string(reinterpret_cast<const char*>(&size), 4) + text);
  }
  /// All that the server sends until it closes the connection; "open" at the end if it does not.
  std::string read_to_end(double seconds = 2) {
    std::string all;
    const double end = monotonic_seconds() + seconds;
    while (monotonic_seconds() < end) {
      pollfd ready{socket_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 50) <= 0) continue;
      char block[4096];
      const auto got = ::recv(socket_.get(), block, sizeof block, 0);
      if (got <= 0) return all;
      all.append(block, static_cast<std::size_t>(got));
    }
    return all + "open";
  }

 private:
  Descriptor socket_;
};

std::string hello(const std::string& run, int rank) {
  return fmt::format(R"({{"type":"hello","run":"{}","rank":{},"pid":4711,"host":"h"}})", run, rank);
}

std::string refusal(const RunningServer& server, const std::string& run, int rank) {
  try {
    ControlClient client({.address = server.address(), .run_id = run, .rank = rank});
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(ControlServer, StrangersAndOtherRunsAreRefused) {
  RunningServer server({.world_size = 2});
  NotedClient member(server, 0);
  EXPECT_THAT(refusal(server, "fedcba9876543210", 1), HasSubstr("another run"));
  EXPECT_THAT(refusal(server, "", 1), HasSubstr("another run"));
  EXPECT_THAT(refusal(server, run_id + "0", 1), HasSubstr("another run"));
  EXPECT_THAT(refusal(server, run_id, 2), HasSubstr("no such rank"));
  EXPECT_THAT(refusal(server, run_id, -1), HasSubstr("no such rank"));
  EXPECT_THAT(refusal(server, run_id, 0), HasSubstr("already is this rank"));
  EXPECT_EQ(refusal(server, run_id, 1), "accepted");
}

TEST(ControlServer, HostileBytesEndTheirConnectionAndNothingElse) {
  RunningServer server({.world_size = 2});
  NotedClient member(server, 0);
  const std::string nested = std::string(1000, '[');
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\xff\xff\xff\xff", 4), std::string(4, '\0'),
        std::string("\0\0\x04\x01", 4) + std::string(2000, 'x'), std::string(100000, 'A'), std::string("\0\0\0\x02{}",
            6),
        std::string("\0\0\0\x05\xff\xfe\0\1\2", 9), std::string("\0\0\x03\xe8", 4) + nested}) {
    Stranger stranger(server.address());
    stranger.send(bytes);
    EXPECT_EQ(stranger.read_to_end(), "") << bytes.substr(0, 20);
  }
  for (const std::string& text :
       {std::string("[]"), std::string("null"), std::string(R"({"type":5})"), std::string(R"({"type":"beat"})"),
        std::string(R"({"type":"hello"})"), std::string(R"({"type":"hello","run":["0123456789abcdef"],"rank":1})")}) {
    Stranger stranger(server.address());
    stranger.send_message(text);
    EXPECT_THAT(stranger.read_to_end(), Not(HasSubstr("welcome"))) << text;
  }
  for (const char* rank : {"\"1\"", "1.5", "1e9", "99999999999999999999", "null", "-1"}) {
    Stranger stranger(server.address());
    stranger.send_message(R"({"type":"hello","run":")" + run_id + R"(","rank":)" + rank + "}");
    EXPECT_THAT(stranger.read_to_end(), HasSubstr("no such rank")) << rank;
  }
  EXPECT_EQ(server.with([](ControlServer& s) { return s.first_failure(); }), std::nullopt);
  member.client.publish("k", "still here");
  EXPECT_EQ(member.client.wait_for("k", 2), "still here");
}

TEST(ControlServer, SilentAndManyStrangersAreDropped) {
  RunningServer server({.world_size = 2});
  NotedClient member(server, 0);
  std::vector<std::unique_ptr<Stranger>> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(std::make_unique<Stranger>(server.address()));
  EXPECT_EQ(crowd.front()->read_to_end(2), "");  // pushed out by the later ones
  NotedClient other(server, 1);                   // in spite of them
  other.client.publish("k", "v");
  EXPECT_EQ(member.client.wait_for("k", 2), "v");
  EXPECT_EQ(crowd.back()->read_to_end(5), "");  // said nothing for 3 s
}

TEST(ControlServer, AMemberThatBreaksTheRulesIsTheFailure) {
  RunningServer server({.world_size = 2});
  NotedClient member(server, 0);
  Stranger impostor(server.address());
  impostor.send_message(hello(run_id, 1));
  impostor.send_message(R"({"type":"dance"})");
  const auto failure = server.wait_for_failure(3);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_THAT(member.end(), HasSubstr("rank 1 (pid 4711"));
}

TEST(ControlServer, WhatARankSaysCannotDriveATerminal) {
  RunningServer server({.world_size = 2});
  NotedClient member(server, 0);
  Stranger rank(server.address());
  rank.send_message(hello(run_id, 1));
  rank.send_message(R"({"type":"failure","message":"bad\u001b[2J\nline \u0007","blamed":"x"})");
  EXPECT_THAT(member.end(), AllOf(HasSubstr("failed: bad [2J line"), Not(HasSubstr("\x1b")), Not(HasSubstr("\n"))));
}

TEST(ControlServer, TableIsShared) {
  RunningServer server({.world_size = 2});
  NotedClient zero(server, 0), one(server, 1);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    zero.client.publish("store", "127.0.0.1:4000");
  });
  EXPECT_EQ(one.client.exchange().wait_for("store"), "127.0.0.1:4000");
  later.join();
  zero.client.publish("store", "second");
  zero.client.publish("other", std::string(4096, 'x'));
  EXPECT_EQ(one.client.wait_for("other", 2).size(), 4096U);
  EXPECT_EQ(one.client.wait_for("store", 2), "second");
  try {
    one.client.wait_for("never", 0.2);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("'never'")));
  }
}

TEST(ControlServer, ALostRankEndsTheOthers) {
  RunningServer server({.world_size = 3});
  NotedClient zero(server, 0), two(server, 2);
  {
    NotedClient one(server, 1);
    one.client.activity().begin("backward", 12, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  EXPECT_THAT(zero.end(), AllOf(HasSubstr("rank 1 (pid "), HasSubstr("is gone: its connection closed")));
  EXPECT_EQ(two.end(), zero.end());
  EXPECT_EQ(server.with([](ControlServer& s) { return s.activity(1); }), "step 12, backward 3");
  EXPECT_THROW(zero.client.wait_for("x", 5), Error);  // ended: at once, not after 5 s
}

TEST(ControlServer, AFinishedRankMayGo) {
  RunningServer server({.world_size = 2});
  NotedClient zero(server, 0);
  {
    NotedClient one(server, 1);
    one.client.finish();
  }
  EXPECT_EQ(server.wait_for_failure(1.5), std::nullopt);
  EXPECT_FALSE(server.with([](ControlServer& s) { return s.all_finished(); }));
  zero.client.finish();
  EXPECT_TRUE(server.with([](ControlServer& s) { return s.all_finished(); }));
}

TEST(ControlServer, ARankWithoutHeartbeatHangs) {
  RunningServer server({.world_size = 2, .silence_s = 0.6});
  NotedClient zero(server, 0);
  Stranger frozen(server.address());
  frozen.send_message(hello(run_id, 1));
  frozen.send_message(R"({"type":"beat","progress":1,"doing":"step 4, all-reduce","waiting":-1})");
  EXPECT_THAT(zero.end(), AllOf(HasSubstr("rank 1 (pid 4711"), HasSubstr("no heartbeat for 0.6 s"),
      HasSubstr("step 4, all-reduce")));
}

TEST(ControlServer, TheRankThatWaitsIsNotTheOneThatHangs) {
  RunningServer server({.world_size = 3, .hang_timeout_s = 0.6});
  NotedClient zero(server, 0), one(server, 1), two(server, 2);
  zero.client.activity().begin("forward", 7, 1);
  const Activity::Waiting waiting(zero.client.activity(), 1);
  one.client.activity().begin("forward", 7, 0);
  std::atomic<bool> leave{false};
  std::thread busy([&] {
    while (!leave) {
      two.client.activity().begin("backward", 7, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto failure = server.wait_for_failure(4);
  leave = true;
  busy.join();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->kind, RankFailure::Kind::stalled);
  EXPECT_THAT(failure->reason, AllOf(HasSubstr("no progress for 0.6 s"), HasSubstr("step 7, forward 0")));
}

TEST(ControlServer, ADeadlockNamesWhoWaitsForWhom) {
  RunningServer server({.world_size = 2, .hang_timeout_s = 0.6});
  NotedClient zero(server, 0), one(server, 1);
  zero.client.activity().begin("receive", 3);
  one.client.activity().begin("barrier", 3);
  const Activity::Waiting a(zero.client.activity(), 1), b(one.client.activity(), Activity::any_rank);
  const auto failure = server.wait_for_failure(4);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, RankFailure::Kind::deadlock);
  EXPECT_THAT(failure->reason, AllOf(HasSubstr("rank 0 for rank 1 in step 3, receive"),
      HasSubstr("rank 1 for its peers in step 3, barrier")));
}

TEST(ControlServer, ABlamedRankThatDiesIsTheCause) {
  RunningServer server({.world_size = 2});
  NotedClient zero(server, 0);
  {
    NotedClient one(server, 1);
    zero.client.report_failure("rank 1 closed the connection", 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const auto failure = server.wait_for_failure(3);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
}

TEST(ControlServer, AnAccusationAloneIsBelievedInTheEnd) {
  RunningServer server({.world_size = 2, .silence_s = 0.5});
  NotedClient zero(server, 0), one(server, 1);
  zero.client.report_failure("rank 1 does not answer", 1);
  const auto failure = server.wait_for_failure(3);
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->reason, HasSubstr("failed: rank 1 does not answer"));
}

TEST(ControlServer, TheFirstFailureIsTheCause) {
  RunningServer server({.world_size = 3});
  NotedClient zero(server, 0);
  auto one = std::make_unique<NotedClient>(server, 1);
  auto two = std::make_unique<NotedClient>(server, 2);
  two->client.report_failure("the disk is full");
  one->client.report_failure("a collective failed");
  one.reset();
  two.reset();
  EXPECT_THAT(zero.end(), AllOf(HasSubstr("rank 2 (pid"), HasSubstr("failed: the disk is full")));
}

TEST(ControlServer, AStopGoesToAllAlsoToThoseThatComeLater) {
  RunningServer server({.world_size = 3});
  NotedClient zero(server, 0), one(server, 1);
  one.client.request_stop(StopCause::terminate, "SIGTERM");
  EXPECT_EQ(zero.stop(), "SIGTERM at rank 1");
  EXPECT_EQ(one.stop(), "SIGTERM at rank 1");
  NotedClient two(server, 2);
  EXPECT_EQ(two.stop(), "SIGTERM at rank 1");
}

TEST(ControlServer, ItsOwnDeathIsNamed) {
  auto server = std::make_unique<RunningServer>(ControlServerOptions{.world_size = 1});
  NotedClient zero(*server, 0);
  server.reset();
  EXPECT_THAT(zero.end(), AllOf(HasSubstr("the test, which supervises the run, is gone")));
}

TEST(ControlServer, ItsOwnSilenceIsNamed) {
  RunningServer server({.world_size = 1});
  NotedClient zero(server, 0, 1.4);
  const std::string reason = server.with([&](ControlServer&) { return zero.end(5); });  // nobody serves meanwhile
  EXPECT_THAT(reason, AllOf(HasSubstr("the test, which supervises the run, hangs"), HasSubstr("1.4 s")));
}

TEST(ControlServer, APauseOfTheServerIsNotTheRanksFault) {
  RunningServer server({.world_size = 1, .silence_s = 1.0});
  NotedClient zero(server, 0, 60);
  server.with([&](ControlServer&) { std::this_thread::sleep_for(std::chrono::milliseconds(2500)); return 0; });
  EXPECT_EQ(server.wait_for_failure(0.8), std::nullopt);
}

TEST(ControlServer, AddressesAreChecked) {
  EXPECT_EQ(parse_address("10.0.0.1:80"), std::make_pair(std::string("10.0.0.1"), 80));
  for (const char* bad : {"", ":80", "host", "host:", "host:0", "host:65536", "host:8x", "host:-1"}) {
    EXPECT_THROW(parse_address(bad), Error) << bad;
  }
  EXPECT_THROW(ControlClient({.address = "127.0.0.1:1", .run_id = run_id, .rank = 0}), Error);
}

}  // namespace
}  // namespace paceline
