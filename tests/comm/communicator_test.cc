#include "paceline/comm/communicator_set.h"

#include "backend.h"
#include "paceline/base/error.h"
#include "paceline/base/philox.h"
#include "paceline/comm/collectives.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

namespace paceline {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

/// The values of rank r's tensor in a test: of very different sizes, so that another order of summing gives other bits.
at::Tensor values_of(int rank, std::int64_t count, at::ScalarType type) {
  at::Tensor values = at::arange(count, at::kDouble);
  values = ((values * 12.9898 + rank * 78.233).sin() * 43758.5453);
  values = (values - values.floor() - 0.5) * ((values * 3.7).sin() * 8).exp();
  return (at::isIntegralType(type, false) ? (values * 10).abs() : values).to(type);
}

at::Tensor sum_of(int ranks, std::int64_t count, at::ScalarType type) {
  at::Tensor sum = at::zeros({count}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum += values_of(rank, count, type).to(at::kDouble);
  return sum;
}

/// Each test runs with worlds of 1 to 4 ranks. (One test for all sizes: starting a test costs more than running it.)
class CommunicatorTest : public testing::TestWithParam<Backend> {
 protected:
  /// Runs the body on every rank of a world of data-parallel ranks.
  void run(int ranks, const std::function<void(Communicator&)>& body) const {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    run_backend(GetParam(), ranks, [&](int, std::shared_ptr<Transport> transport) {
      CommunicatorSet set(std::move(transport), Layout{.dp = ranks});
      body(set.world());
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorTest, testing::ValuesIn(all_backends()),
                         [](const auto& info) { return backend_name(info.param); });

TEST_P(CommunicatorTest, AllReduceSumsOnBothSidesOfTheThresholdWithTheSameBitsEverywhere) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    // The last is cut into more than one piece on its way around the ring.
    const std::vector<std::int64_t> counts = {0, 1, 2, 1000, ring_from_bytes / 4 + 3, 600'001};
    std::vector<std::vector<at::Tensor>> results(ranks);
    run(ranks, [&](Communicator& world) {
      for (const std::int64_t count : counts) {
        const at::Tensor input = values_of(world.rank(), count, at::kFloat);
        at::Tensor first = input.clone();
        world.all_reduce(first, ReduceOp::sum);
        at::Tensor second = input.clone();
        world.all_reduce(second, ReduceOp::sum);
        EXPECT_TRUE(at::equal(first, second)) << count;
        results[world.rank()].push_back(first);
      }
    });
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(at::equal(results[rank][i], results[0][i])) << counts[i];
      if (counts[i] == 0) continue;
      const at::Tensor error = (results[0][i].to(at::kDouble) - sum_of(ranks, counts[i], at::kFloat)).abs();
      EXPECT_LE(error.max().item<double>(), 1e-6 * 3000) << counts[i];
    }
  }
}

TEST_P(CommunicatorTest, AllReduceOfEveryType) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      for (const auto type : {at::kDouble, at::kLong, at::kInt, at::kByte}) {
        for (const std::int64_t count : {std::int64_t{17}, static_cast<std::int64_t>(ring_from_bytes / 8 + 5)}) {
          at::Tensor tensor = values_of(world.rank(), count, type);
          if (type == at::kByte) tensor = tensor.remainder(50);
          at::Tensor expected = at::zeros({count}, at::kDouble);
          for (int rank = 0; rank < ranks; ++rank) {
            at::Tensor part = values_of(rank, count, type);
            if (type == at::kByte) part = part.remainder(50);
            expected += part.to(at::kDouble);
          }
          world.all_reduce(tensor, ReduceOp::sum);
          const double error = (tensor.to(at::kDouble) - expected).abs().max().item<double>();
          EXPECT_LE(error, type == at::kDouble ? 1e-11 : 0.0);
        }
      }
      for (const auto type : {at::kBFloat16, at::kHalf}) {
        // Sums that float32 holds exactly and the narrow type rounds once: 256 + 1 + ... in steps would stay at 256.
        at::Tensor tensor = at::full({9}, world.rank() == 0 ? 256.0 : 1.0, type);
        world.all_reduce(tensor, ReduceOp::sum);
        EXPECT_TRUE(at::equal(tensor, at::full({9}, 255.0 + ranks, at::kFloat).to(type)));
        EXPECT_EQ(tensor.scalar_type(), type);
      }
    });
  }
}

TEST_P(CommunicatorTest, MaximumKeepsNotANumber) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      at::Tensor tensor = values_of(world.rank(), 1000, at::kFloat);
      at::Tensor expected = values_of(0, 1000, at::kFloat);
      for (int rank = 1; rank < ranks; ++rank) expected = at::maximum(expected, values_of(rank, 1000, at::kFloat));
      if (world.rank() == ranks - 1) tensor[7] = std::nan("");
      expected[7] = std::nan("");
      world.all_reduce(tensor, ReduceOp::max);
      EXPECT_TRUE(std::isnan(tensor[7].item<float>()));
      tensor[7] = expected[7] = 0;
      EXPECT_TRUE(at::equal(tensor, expected));
    });
  }
}

TEST_P(CommunicatorTest, AllReduceStartRunsBesideTheCallerInOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      std::vector<at::Tensor> buckets;
      std::vector<std::unique_ptr<Work>> works;
      for (int i = 0; i < 8; ++i) {
        buckets.push_back(values_of(world.rank() + i, i % 2 == 0 ? 200'000 : 10, at::kDouble));
        works.push_back(world.all_reduce_start(buckets.back(), ReduceOp::sum));
        at::Tensor other = at::full({3}, 1.0);
        world.all_reduce(other, ReduceOp::sum);
        EXPECT_EQ(other[0].item<float>(), ranks);
      }
      for (auto& work : works) work->wait();
      for (int i = 0; i < 8; ++i) {
        at::Tensor expected = values_of(i, buckets[i].numel(), at::kDouble);
        for (int rank = 1; rank < ranks; ++rank) expected += values_of(rank + i, buckets[i].numel(), at::kDouble);
        EXPECT_LE((buckets[i] - expected).abs().max().item<double>(), 1e-10);
      }
    });
  }
}

TEST_P(CommunicatorTest, BroadcastFromEveryRoot) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      for (int root = 0; root < ranks; ++root) {
        for (const std::int64_t count : {1, 300'000}) {
          at::Tensor tensor = values_of(world.rank(), count, at::kFloat);
          world.broadcast(tensor, root);
          EXPECT_TRUE(at::equal(tensor, values_of(root, count, at::kFloat)));
        }
      }
    });
  }
}

TEST_P(CommunicatorTest, AllGatherIsInRankOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kByte}) {
        for (const std::int64_t count : {1, 150'000}) {
          at::Tensor output = at::zeros({ranks, count}, type);
          world.all_gather(values_of(world.rank(), count, type), output);
          for (int rank = 0; rank < ranks; ++rank) {
            EXPECT_TRUE(at::equal(output[rank], values_of(rank, count, type)));
          }
        }
      }
    });
  }
}

TEST_P(CommunicatorTest, ReduceScatterGivesEachRankItsPart) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      for (const std::int64_t part : {1, 150'001}) {
        const at::Tensor input = values_of(world.rank(), part * ranks, at::kDouble);
        const at::Tensor before = input.clone();
        at::Tensor output = at::zeros({part}, at::kDouble);
        world.reduce_scatter(input, output, ReduceOp::sum);
        const at::Tensor expected = sum_of(ranks, part * ranks, at::kDouble).narrow(0, world.rank() * part, part);
        EXPECT_LE((output - expected).abs().max().item<double>(), 1e-10);
        EXPECT_TRUE(at::equal(input, before));
      }
    });
  }
}

TEST_P(CommunicatorTest, BytesOfAnyLength) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      const auto text_of = [](int rank) {
        return rank == 1 ? std::string() : std::string(1 + rank * 70'000, 'a' + rank);
      };
      const std::vector<std::string> all = world.all_gather_bytes(text_of(world.rank()));
      ASSERT_EQ(static_cast<int>(all.size()), ranks);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[rank], text_of(rank));
      for (int root = 0; root < ranks; ++root) {
        EXPECT_EQ(world.broadcast_bytes(world.rank() == root ? text_of(root) : "other", root), text_of(root));
      }
    });
  }
}

TEST_P(CommunicatorTest, BarrierWaitsForTheLast) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::atomic<int> arrived = 0;
    run(ranks, [&](Communicator& world) {
      for (int round = 1; round <= 3; ++round) {
        if (world.rank() == ranks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ++arrived;
        world.barrier();
        EXPECT_GE(arrived, round * ranks);
        world.barrier();
      }
    });
  }
}

TEST_P(CommunicatorTest, MessagesKeepTheirOrderAndTheirTags) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      // Everyone sends to everyone before anyone receives; received by falling tag, in order within a tag.
      const int tags = 20;
      const int repeats = 3;
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == world.rank()) continue;
        for (int repeat = 0; repeat < repeats; ++repeat) {
          for (int tag = 0; tag < tags; ++tag) {
            world.send(at::full({tag + 1}, world.rank() * 10'000 + tag * 100 + repeat, at::kLong), peer, tag);
          }
        }
      }
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == world.rank()) continue;
        for (int tag = tags - 1; tag >= 0; --tag) {
          for (int repeat = 0; repeat < repeats; ++repeat) {
            at::Tensor tensor = at::zeros({tag + 1}, at::kLong);
            world.receive(tensor, peer, tag);
            EXPECT_TRUE(at::equal(tensor, at::full({tag + 1}, peer * 10'000 + tag * 100 + repeat, at::kLong)));
          }
        }
      }
    });
  }
}

TEST_P(CommunicatorTest, LargeMessagesCrossWithoutBlocking) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      const std::int64_t count = 700'000;
      const int next = (world.rank() + 1) % ranks;
      const int previous = (world.rank() + ranks - 1) % ranks;
      const at::Tensor mine = values_of(world.rank(), count, at::kFloat);
      world.send(mine, next, 1);
      const auto sent = world.send_start(mine, next, Communicator::tag_limit - 1);
      for (const int tag : {Communicator::tag_limit - 1, 1}) {
        at::Tensor tensor = at::zeros({count});
        world.receive(tensor, previous, tag);
        EXPECT_TRUE(at::equal(tensor, values_of(previous, count, at::kFloat)));
      }
      sent->wait();
    });
  }
}

TEST_P(CommunicatorTest, ADifferenceBetweenTheRanksIsNamedWhenChecked) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      world.set_checked(true);
      at::Tensor same = at::full({5}, 1.0);
      world.all_reduce(same, ReduceOp::sum);
      at::Tensor differing = at::zeros({world.rank() == 1 ? 7 : 5}, at::kFloat);
      EXPECT_THAT([&] { world.all_reduce(differing, ReduceOp::sum); },
                  testing::ThrowsMessage<Error>(testing::AllOf(
                      HasSubstr("rank 0 calls all_reduce of 5 Float elements"),
                      HasSubstr("rank 1 calls all_reduce of 7 Float elements"), HasSubstr("group 'world'"))));
      at::Tensor type = at::zeros({5}, world.rank() == 1 ? at::kLong : at::kFloat);
      EXPECT_THAT([&] { world.all_reduce_start(type, ReduceOp::sum)->wait(); },
                  testing::ThrowsMessage<Error>(HasSubstr("rank 1 calls all_reduce of 5 Long elements")));
      if (world.rank() == 1) {
        EXPECT_THROW(world.broadcast(same, 0), Error);
      } else {
        EXPECT_THROW(world.all_reduce(same, ReduceOp::sum), Error);
      }
    });
  }
}

TEST_P(CommunicatorTest, AbortEndsPendingAndLaterCalls) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    std::mutex mutex;
    std::vector<double> seconds;
    std::barrier all_seen(ranks);  // a rank that ended would be a dead peer to the others
    run(ranks, [&](Communicator& world) {
      world.barrier();
      at::Tensor tensor = at::zeros({4});
      const auto pending = world.receive_start(tensor, (world.rank() + 1) % ranks, 3);
      // Rank 0 takes no part in the all-reduce, so it cannot end.
      at::Tensor reduced = at::zeros({100'000});
      std::unique_ptr<Work> reducing;
      if (world.rank() != 0) reducing = world.all_reduce_start(reduced, ReduceOp::sum);
      steady_clock::time_point aborted;
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        aborted = steady_clock::now();
        world.abort("stopped by the test");
      });
      EXPECT_THAT([&] { pending->wait(); }, testing::ThrowsMessage<Error>(HasSubstr("stopped by the test")));
      if (reducing) {
        EXPECT_THROW(reducing->wait(), Error);
      }
      other.join();
      const double waited = std::chrono::duration<double>(steady_clock::now() - aborted).count();
      all_seen.arrive_and_wait();
      EXPECT_THROW(world.send(tensor, (world.rank() + 1) % ranks, 3), Error);
      EXPECT_THROW(world.receive_start(tensor, (world.rank() + 1) % ranks, 3)->wait(), Error);
      EXPECT_THROW(world.all_reduce(tensor, ReduceOp::sum), Error);
      EXPECT_THROW(world.barrier(), Error);
      EXPECT_THROW(world.all_gather_bytes("x"), Error);
      std::lock_guard lock(mutex);
      seconds.push_back(waited);
    });
    EXPECT_EQ(static_cast<int>(seconds.size()), ranks);
    for (const double waited : seconds) EXPECT_LT(waited, 0.5);
  }
}

TEST_P(CommunicatorTest, AMessageThatDiffersFromWhatIsExpectedIsNamedWhenChecked) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    run(ranks, [&](Communicator& world) {
      world.set_checked(true);
      if (world.rank() == 0) {
        world.send(at::full({3}, 1.0), 1, 4);
        world.send(at::full({3}, 2.0), 1, 4);
        world.send(at::full({7}, 3.0), 1, 4);
        const auto given_up = world.send_start(at::full({7}, 3.0), 1, 5);
        world.barrier();
        return;
      } else if (world.rank() == 1) {
        at::Tensor first = at::zeros({3});
        at::Tensor second = at::zeros({3});
        const auto one = world.receive_start(first, 0, 4);
        const auto two = world.receive_start(second, 0, 4);
        one->wait();
        two->wait();
        EXPECT_EQ(first[2].item<float>(), 1);
        EXPECT_EQ(second[2].item<float>(), 2);
        for (const int tag : {4, 5}) {
          EXPECT_THAT([&] { world.receive(first, 0, tag); },
                      testing::ThrowsMessage<Error>(HasSubstr(
                        fmt::format("rank 0 sent message of 7 Float elements ({0}), rank 1 expects message of 3 "
                                    "Float elements ({0})", tag))));
        }
      }
      world.barrier();
    });
  }
}

class CommunicatorSetTest : public testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorSetTest, testing::ValuesIn(all_backends()),
                         [](const auto& info) { return backend_name(info.param); });

TEST_P(CommunicatorSetTest, GroupsAreTheLayoutsAndKeepApart) {
  const Layout layout{.dp = 2, .tp = 2, .pp = 2};
  run_backend(GetParam(), 8, [&](int rank, std::shared_ptr<Transport> transport) {
    CommunicatorSet set(std::move(transport), layout);
    const auto sum_of_ranks = [&](Communicator& group) {
      at::Tensor value = at::full({1}, static_cast<double>(rank), at::kDouble);
      group.all_reduce(value, ReduceOp::sum);
      return value.item<double>();
    };
    const auto expected = [](const std::vector<int>& ranks) {
      double sum = 0;
      for (const int member : ranks) sum += member;
      return sum;
    };
    EXPECT_EQ(set.rank(), rank);
    EXPECT_EQ(set.tensor().world_ranks(), layout.tensor_group(rank));
    EXPECT_EQ(set.tensor().rank(), layout.coordinate(rank).tp);
    EXPECT_EQ(sum_of_ranks(set.world()), 28);
    EXPECT_EQ(sum_of_ranks(set.tensor()), expected(layout.tensor_group(rank)));
    EXPECT_EQ(sum_of_ranks(set.pipeline()), expected(layout.pipeline_group(rank)));
    EXPECT_EQ(sum_of_ranks(set.data()), expected(layout.data_group(rank)));
    EXPECT_EQ(sum_of_ranks(set.model()), expected(layout.model_group(rank)));
    // Groups of some of the ranks, numbered in the order given; groups with the same ranks do not mix their messages.
    if (rank == 1 || rank == 6 || rank == 7) {
      const auto first = set.make_group({7, 1, 6}, "tied");
      const auto second = set.make_group({7, 1, 6}, "replicas");
      EXPECT_EQ(first->rank(), rank == 7 ? 0 : rank == 1 ? 1 : 2);
      EXPECT_EQ(sum_of_ranks(*first), 14);
      const int peer = (first->rank() + 1) % 3;
      first->send(at::full({2}, 1.0), peer, 0);
      second->send(at::full({2}, 2.0), peer, 0);
      at::Tensor value = at::zeros({2});
      second->receive(value, (first->rank() + 2) % 3, 0);
      EXPECT_EQ(value[1].item<float>(), 2);
      first->receive(value, (first->rank() + 2) % 3, 0);
      EXPECT_EQ(value[1].item<float>(), 1);
    }
  });
}

TEST_P(CommunicatorSetTest, MembersThatMakeDifferentGroupsAreTold) {
  run_backend(GetParam(), 2, [&](int rank, std::shared_ptr<Transport> transport) {
    CommunicatorSet set(std::move(transport), Layout{.dp = 2});
    EXPECT_THROW(set.make_group({0, 1}, rank == 0 ? "a" : "b"), Error);
  });
}

}  // namespace
}  // namespace paceline
