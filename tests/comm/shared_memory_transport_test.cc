#include "paceline/comm/shared_memory_transport.h"

#include "backend.h"
#include "paceline/base/error.h"
#include "paceline/comm/shared_segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <latch>
#include <numeric>
#include <thread>
#include <vector>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(SharedSegment, TellsWhoIsPresent) {
  auto first = SharedSegment::create(3);
  ASSERT_NE(first, nullptr);
  auto second = SharedSegment::open(first->handle(), 3);
  ASSERT_NE(second, nullptr);
  ASSERT_TRUE(first->enter(0));
  ASSERT_TRUE(second->enter(1));
  EXPECT_TRUE(second->is_present(0));
  EXPECT_TRUE(first->is_present(1));
  EXPECT_FALSE(first->is_present(2));
  second.reset();
  EXPECT_FALSE(first->is_present(1));
}

TEST(SharedSegment, OpensNothingButItself) {
  const auto segment = SharedSegment::create(2);
  ASSERT_NE(segment, nullptr);
  SharedSegment::Handle handle = segment->handle();
  EXPECT_EQ(SharedSegment::open(handle, 3), nullptr);
  handle.cookie ^= 1;
  EXPECT_EQ(SharedSegment::open(handle, 2), nullptr);
  EXPECT_EQ(SharedSegment::open({}, 2), nullptr);
}

TEST(SharedMemoryTransport, MessagesOfEverySizeAndMoreThanTheRingHolds) {
  run_backend(Backend::shared_memory, 2, [](int rank, std::shared_ptr<Transport> transport) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{17},
                                    SharedSegment::ring_bytes - 16, SharedSegment::ring_bytes,
                                    3 * SharedSegment::ring_bytes + 5}) {
      std::vector<char> sent(bytes);
      std::iota(sent.begin(), sent.end(), static_cast<char>(rank));
      std::vector<char> expected(bytes);
      std::iota(expected.begin(), expected.end(), static_cast<char>(1 - rank));
      std::vector<char> received(bytes);
      transport->send(sent.data(), bytes, 1 - rank, 9);
      transport->receive_start(received.data(), bytes, 1 - rank, 9)->wait();
      EXPECT_TRUE(received == expected) << bytes;
    }
  });
}

TEST(SharedMemoryTransport, AMessageOfAnotherSizeIsRefusedNamingTheRanks) {
  run_backend(Backend::shared_memory, 2, [](int rank, std::shared_ptr<Transport> transport) {
    char data[8] = {};
    if (rank == 0) {
      transport->send(data, 8, 1, 5);
      transport->send("ok", 2, 1, 5);
    } else {
      EXPECT_THAT([&] { transport->receive_start(data, 4, 0, 5)->wait(); },
                  ThrowsMessage<Error>(HasSubstr("rank 0 sent 8 bytes where rank 1 expects 4")));
      transport->receive_start(data, 2, 0, 5)->wait();
      EXPECT_EQ(std::memcmp(data, "ok", 2), 0);
    }
  });
}

TEST(SharedMemoryTransport, ARankThatHasEndedIsNamedOnceItsMessagesAreRead) {
  run_backend(Backend::shared_memory, 2, [](int rank, std::shared_ptr<Transport> transport) {
    int value = 42;
    if (rank == 0) return transport->send(&value, sizeof(value), 1, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    value = 0;
    transport->receive_start(&value, sizeof(value), 0, 0)->wait();
    EXPECT_EQ(value, 42);
    EXPECT_THAT([&] { transport->receive_start(&value, sizeof(value), 0, 0)->wait(); },
                ThrowsMessage<Error>(HasSubstr("rank 0 is gone")));
  });
}

TEST(SharedMemoryTransport, AReceiveEndsAtItsTimeLimit) {
  ListeningSocket socket = listen_as_master("127.0.0.1", 0);
  const int port = socket.port();
  std::latch gave_up(1);
  run_ranks(2, [&](int rank, Hub&) {
    const auto transport = share_memory(connect_gloo({.rank = rank, .world_size = 2, .master_port = port,
                                                      .listening_descriptor = rank == 0 ? socket.release() : -1,
                                                      .run_id = "limit"}),
                                        std::chrono::milliseconds(300));
    int value = 0;
    if (rank == 1) {  // stays until rank 0 has given up
      gave_up.wait();
      return;
    }
    EXPECT_THAT([&] { transport->receive_start(&value, sizeof(value), 1, 0)->wait(); },
                ThrowsMessage<Error>(HasSubstr("rank 1 did not answer for 0.3 s")));
    gave_up.count_down();
  });
}

}  // namespace
}  // namespace paceline
