#include "paceline/comm/thread_communicator.h"

#include "paceline/base/error.h"
#include "paceline/comm/communicator_set.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(RunRanks, RunsEveryRankOnce) {
  std::atomic<int> sum = 0;
  run_ranks(4, [&](int rank, Hub& hub) {
    EXPECT_EQ(hub.size(), 4);
    sum += 1 << rank;
  });
  EXPECT_EQ(sum, 15);
}

TEST(RunRanks, AFailureEndsTheOthersAndIsTheOneReported) {
  EXPECT_THAT([] {
    run_ranks(3, [](int rank, Hub& hub) {
      CommunicatorSet set(hub.transport(rank), Layout{.dp = 3});
      if (rank == 1) throw Error("rank 1 has had enough");
      at::Tensor value = at::zeros({4});
      set.world().receive(value, 1, 0);
    });
  }, ThrowsMessage<Error>(HasSubstr("rank 1 has had enough")));
}

TEST(Hub, AMessageOfAnotherSizeIsRefusedOnBothOrders) {
  Hub hub(2);
  const auto zero = hub.transport(0);
  const auto one = hub.transport(1);
  char data[8] = {};
  zero->send(data, 8, 1, 5);
  EXPECT_THAT([&] { one->receive_start(data, 4, 0, 5); },
              ThrowsMessage<Error>(HasSubstr("rank 0 sent 8 bytes where rank 1 expects 4")));
  const auto work = one->receive_start(data, 4, 0, 6);
  EXPECT_THROW(zero->send(data, 8, 1, 6), Error);
  EXPECT_THROW(work->wait(), Error);
}

TEST(Hub, AReceiveEndsAtItsTimeLimit) {
  Hub hub(2, std::chrono::milliseconds(50));
  char data[8] = {};
  const auto transport = hub.transport(0);
  const auto work = transport->receive_start(data, 8, 1, 0);
  EXPECT_THAT([&] { work->wait(); }, ThrowsMessage<Error>(HasSubstr("rank 0 waited 0.05 s for a message of rank 1")));
}

TEST(Hub, AReceiveGivenUpDoesNotTakeTheMessage) {
  Hub hub(2);
  const auto zero = hub.transport(0);
  const auto one = hub.transport(1);
  int value = 0;
  one->receive_start(&value, sizeof(value), 0, 1).reset();
  const int sent = 7;
  zero->send(&sent, sizeof(sent), 1, 1);
  EXPECT_EQ(value, 0);
  one->receive_start(&value, sizeof(value), 0, 1)->wait();
  EXPECT_EQ(value, 7);
}

TEST(CommunicatorSet, RefusesALayoutOfAnotherSize) {
  Hub hub(2);
  EXPECT_THAT([&] { CommunicatorSet(hub.transport(0), Layout{.dp = 3}); },
              ThrowsMessage<Error>(HasSubstr("dp=3,tp=1,pp=1 needs 3 ranks, but 2 take part")));
}

}  // namespace
}  // namespace paceline
