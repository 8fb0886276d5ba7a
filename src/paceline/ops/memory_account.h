#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace paceline {

/// What a block of memory is for. Everything outside any scope counts as `workspace` of no account.
enum class MemoryClass { parameters, gradients, optimizer, activations, communication, workspace };
inline constexpr std::size_t memory_class_count = 6;

/// "parameters", ...: the names in plans, metrics and traces.
const char* memory_class_name(MemoryClass memory_class);

struct MemoryUse {
  std::array<int64_t, memory_class_count> live{};  ///< bytes now, by class
  std::array<int64_t, memory_class_count> peak{};  ///< most bytes of each class at any time since the last reset
  int64_t live_total = 0;
  int64_t peak_total = 0;  ///< the largest total at any one time: at most the sum of `peak`
};

struct AccountState;

/// One rank's tensor memory by class. It counts the bytes that tensors asked for (the allocator rounds them up to 64),
/// and keeps large freed blocks for reuse by blocks of the same size, so that a training step neither maps nor faults
/// its activations again. May end before the blocks that it counts.
class MemoryAccount {
 public:
  MemoryAccount();
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  MemoryUse use() const;
  void reset_peaks();        ///< peaks become what is live now
  int64_t kept_bytes() const;  ///< freed blocks held for reuse: resident, but nobody's
  void release_kept();       ///< gives them back to the system

 private:
  friend class AccountScope;
  AccountState* state_;
};

/// Counts the tensors that this thread allocates during its life; scopes nest. Threads of the intra-op pool do not
/// inherit it: outputs are allocated by the caller.
class AccountScope {
 public:
  AccountScope(MemoryAccount& account, MemoryClass memory_class);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  AccountState* previous_state_;
  MemoryClass previous_class_;
};

/// Makes every CPU tensor of the process come from the accounting allocator. Called once, before the first tensor;
/// further calls do nothing.
void install_accounting_allocator();

}  // namespace paceline
