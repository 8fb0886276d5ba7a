#include "paceline/ops/memory_account.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace paceline {
namespace {

class MemoryAccounts : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_accounting_allocator(); }
  static int64_t live(const MemoryAccount& account, MemoryClass c) {
    return account.use().live[static_cast<size_t>(c)];
  }
  static at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }
};

TEST_F(MemoryAccounts, CountByClassAndPeak) {
  MemoryAccount account;
  at::Tensor parameters, activations;
  {
    const AccountScope scope(account, MemoryClass::parameters);
    parameters = bytes(1000);
    {
      const AccountScope inner(account, MemoryClass::activations);
      activations = bytes(300000);
    }
    const at::Tensor passing = bytes(5000);
    EXPECT_EQ(live(account, MemoryClass::parameters), 6000);
  }
  const at::Tensor outside = bytes(77777);
  EXPECT_EQ(live(account, MemoryClass::parameters), 1000);
  EXPECT_EQ(live(account, MemoryClass::activations), 300000);
  EXPECT_EQ(account.use().live_total, 301000);
  EXPECT_EQ(account.use().peak_total, 306000);
  EXPECT_EQ(account.use().peak[static_cast<size_t>(MemoryClass::parameters)], 6000);
  EXPECT_EQ(account.use().peak[static_cast<size_t>(MemoryClass::workspace)], 0);
  account.reset_peaks();
  EXPECT_EQ(account.use().peak_total, 301000);
  activations.reset();
  EXPECT_EQ(account.use().live_total, 1000);
  EXPECT_EQ(account.use().peak_total, 301000);
}

TEST_F(MemoryAccounts, LargeBlocksComeBackAndSmallOnesDoNot) {
  MemoryAccount account;
  const AccountScope scope(account, MemoryClass::activations);
  for (const int64_t size : {100 << 10, 3 << 20, 50 << 20}) {
    at::Tensor first = bytes(size);
    const void* place = first.const_data_ptr();
    first.mutable_data_ptr<uint8_t>()[size - 1] = 1;
    first.reset();
    EXPECT_GE(account.kept_bytes(), size);
    at::Tensor second = bytes(size);
    EXPECT_EQ(second.const_data_ptr(), place);
    EXPECT_EQ(account.kept_bytes(), 0);
    second.reset();
    account.release_kept();
    EXPECT_EQ(account.kept_bytes(), 0);
  }
  bytes(1000);
  EXPECT_EQ(account.kept_bytes(), 0);
}

TEST_F(MemoryAccounts, KeptAndLiveStayBelowTheMostThatWasLive) {
  MemoryAccount account;
  const AccountScope scope(account, MemoryClass::activations);
  constexpr int64_t most = 64 << 20;
  bytes(most);
  for (int64_t size = 1 << 20; size < most; size += 3 << 20) {
    const at::Tensor block = bytes(size);
    EXPECT_LE(account.kept_bytes() + size, most + (1 << 20)) << size;
  }
}

TEST_F(MemoryAccounts, BlocksAreAligned) {
  MemoryAccount account;
  const AccountScope scope(account, MemoryClass::workspace);
  for (const int64_t size : {1, 63, 64, 4096, 70000, 5 << 20})
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes(size).const_data_ptr()) % 64, 0u) << size;
}

TEST_F(MemoryAccounts, BlocksMayOutliveTheirAccount) {
  at::Tensor small, large;
  {
    MemoryAccount account;
    const AccountScope scope(account, MemoryClass::gradients);
    small = bytes(10);
    large = bytes(4 << 20);
  }
  large.mutable_data_ptr<uint8_t>()[0] = 3;
  EXPECT_EQ(large[0].item<int>(), 3);
  small.reset();
  large.reset();
}

TEST_F(MemoryAccounts, RanksAreThreads) {
  std::vector<std::thread> threads;
  std::vector<int64_t> peaks(4);
  at::Tensor crossing[4];
  MemoryAccount accounts[4];
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      const AccountScope scope(accounts[rank], MemoryClass::activations);
      for (int i = 0; i < 2000; ++i) {
        const at::Tensor a = bytes(1000 * (rank + 1));
        const at::Tensor b = bytes(100000 * (rank + 1));
        if (i == 7) crossing[rank] = b;
      }
      peaks[rank] = accounts[rank].use().peak_total;
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(peaks[rank], 201000 * (rank + 1));
    EXPECT_EQ(accounts[rank].use().live_total, 100000 * (rank + 1));
    crossing[rank].reset();  // freed by another thread than the one that made it
    EXPECT_EQ(accounts[rank].use().live_total, 0);
  }
}

TEST_F(MemoryAccounts, AllocatorClonesAndResizes) {
  MemoryAccount account;
  const AccountScope scope(account, MemoryClass::gradients);
  at::Tensor values = at::empty({10}, at::kFloat).fill_(2);
  const at::Tensor copy = values.clone();
  values.resize_({100000});
  EXPECT_EQ(live(account, MemoryClass::gradients), 400000 + 40);
  EXPECT_EQ(copy.sum().item<double>(), 20);
  EXPECT_EQ(values[9].item<double>(), 2);
}

}  // namespace
}  // namespace paceline
