#include "paceline/supervision/stop_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "test_process.h"

namespace paceline {
namespace {

TEST(StopRequest, NothingAsksAtFirst) {
  StopRequest stop;
  EXPECT_FALSE(stop.requested());
  EXPECT_EQ(stop.cause(), StopCause::none);
}

TEST(StopRequest, SignalsAsk) {
  for (const int number : {SIGTERM, SIGINT}) {
    StopRequest stop;
    ::kill(::getpid(), number);
    ASSERT_TRUE(wait_until(2, [&] { return stop.requested(); }));
    EXPECT_EQ(stop.reason(), signal_name(number));
    EXPECT_EQ(stop_exit_code(stop.cause()), 128 + number);
  }
}

TEST(StopRequest, ARepeatedSigintWithinAMomentIsOne) {
  StopRequest stop;
  ::kill(::getpid(), SIGINT);
  ASSERT_TRUE(wait_until(2, [&] { return stop.requested(); }));
  ::kill(::getpid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(stop.cause(), StopCause::interrupt);
}

TEST(StopRequest, ASecondSigintLaterEndsTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    StopRequest stop;
    ::kill(::getpid(), SIGINT);
    wait_until(2, [&] { return stop.requested(); });
    ::sleep(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(::getpid(), SIGINT);
    ::sleep(3);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(exit_code_of(status), 130);
}

TEST(StopRequest, TheTimeLimitAsks) {
  StopRequest stop(0.2 / 60);
  const double begin = monotonic_seconds();
  std::string told;
  std::mutex mutex;
  stop.on_request([&](StopCause, const std::string& reason) {
    const std::lock_guard lock(mutex);
    told = reason;
  });
  ASSERT_TRUE(wait_until(2, [&] { return stop.requested(); }));
  EXPECT_GE(monotonic_seconds() - begin, 0.19);
  EXPECT_EQ(stop.cause(), StopCause::time_limit);
  EXPECT_EQ(stop_exit_code(stop.cause()), 143);
  EXPECT_TRUE(wait_until(1, [&] {
    const std::lock_guard lock(mutex);
    return told == stop.reason();
  }));
}

TEST(StopRequest, WhoAsksInsideIsNotTold) {
  StopRequest stop;
  int calls = 0;
  stop.on_request([&](StopCause, const std::string&) { ++calls; });
  stop.ask(StopCause::terminate, "SIGTERM at rank 1");
  stop.ask(StopCause::interrupt, "later");
  EXPECT_EQ(stop.reason(), "SIGTERM at rank 1");
  EXPECT_EQ(stop.cause(), StopCause::terminate);
  EXPECT_EQ(calls, 0);
}

TEST(StopRequest, ALateListenerIsToldAtOnce) {
  StopRequest stop;
  ::kill(::getpid(), SIGTERM);
  ASSERT_TRUE(wait_until(2, [&] { return stop.requested(); }));
  std::string told;
  stop.on_request([&](StopCause, const std::string& reason) { told = reason; });
  EXPECT_EQ(told, "SIGTERM");
}

TEST(StopRequest, TheMaskIsGivenBack) {
  sigset_t before, after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  { StopRequest stop; }
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  EXPECT_EQ(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
}

}  // namespace
}  // namespace paceline
