#include "paceline/ops/memory_account.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "paceline/base/error.h"

namespace paceline {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t page = 4096;
constexpr std::size_t kept_from = 64 << 10;      // smaller blocks are left to malloc
constexpr std::size_t mapped_from = huge_page;   // such capacities are mapped, on huge pages where the system has them

/// Stands right before the data.
struct alignas(64) Block {
  void* memory;  ///< where the system's memory begins
  AccountState* state;
  std::size_t asked;     ///< what the tensor wanted
  std::size_t capacity;  ///< from `memory` on
  MemoryClass memory_class;
};
static_assert(sizeof(Block) == 64);

Block* block_of(void* data) { return static_cast<Block*>(data) - 1; }
void* data_of(Block* block) { return block + 1; }

std::size_t rounded(std::size_t asked) {
  const bool large = asked >= mapped_from / 2;
  const std::size_t unit = large ? 16 * page : asked >= kept_from ? page : 64;
  return (asked + sizeof(Block) + (large ? page : 0) + unit - 1) / unit * unit;  // room for shift_in_page
}

/// Where in its first page a mapped block starts. Were all tensors at the same place in their pages, a loop over
/// several of them would take loads for dependent on stores to other tensors whose addresses end in the same 12 bits.
std::size_t shift_in_page() {
  static std::atomic<std::size_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed) * 13 % 64 * 64;
}

/// Fresh memory on a huge page's boundary.
void* map_memory(std::size_t size) {
  const std::size_t reserved = size + huge_page;
  void* memory = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* start = static_cast<char*>(memory);
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(start) % huge_page;
  const std::size_t head = misaligned == 0 ? 0 : huge_page - misaligned;
  if (head != 0) munmap(start, head);
  if (reserved - head - size != 0) munmap(start + head + size, reserved - head - size);
  madvise(start + head, size / huge_page * huge_page, MADV_HUGEPAGE);
  return start + head;
}

Block* take_from_system(std::size_t capacity) {
  const bool mapped = capacity >= mapped_from;
  void* memory = mapped ? map_memory(capacity) : std::aligned_alloc(64, capacity);
  if (memory == nullptr) return nullptr;
  Block* block = reinterpret_cast<Block*>(static_cast<char*>(memory) + (mapped ? shift_in_page() : 0));
  block->memory = memory;
  return block;
}

void give_to_system(Block* block) {
  if (block->capacity >= mapped_from) {
    munmap(block->memory, block->capacity);
  } else {
    std::free(block->memory);
  }
}

}  // namespace

/// Lives until its account and the last of its blocks have gone.
struct AccountState {
  std::mutex mutex;
  MemoryUse use;
  std::size_t references = 1;
  bool closed = false;
  std::size_t held = 0;       // capacity of live and kept blocks: what is resident
  std::size_t most_live = 0;  // largest capacity of live blocks ever
  std::size_t kept = 0;
  std::map<std::size_t, std::vector<Block*>> free_blocks;  // by capacity

  Block* take_kept(std::size_t capacity) {
    const auto bucket = free_blocks.find(capacity);
    if (bucket == free_blocks.end()) return nullptr;
    Block* block = bucket->second.back();
    bucket->second.pop_back();
    if (bucket->second.empty()) free_blocks.erase(bucket);
    kept -= capacity;
    return block;
  }

  /// Gives kept blocks back, large ones first, until no more than `most` bytes are kept.
  void release_kept(std::size_t most) {
    while (kept > most) {
      const std::size_t capacity = std::prev(free_blocks.end())->first;
      give_to_system(take_kept(capacity));
      held -= capacity;
    }
  }

  void count(MemoryClass memory_class, int64_t bytes) {
    const auto c = static_cast<std::size_t>(memory_class);
    use.live[c] += bytes;
    use.live_total += bytes;
    use.peak[c] = std::max(use.peak[c], use.live[c]);
    use.peak_total = std::max(use.peak_total, use.live_total);
  }
};

namespace {

thread_local AccountState* current_state = nullptr;
thread_local MemoryClass current_class = MemoryClass::workspace;

[[noreturn]] void out_of_memory(std::size_t asked) {
  fail("out of memory: the system has no {} bytes left for {}", asked, memory_class_name(current_class));
}

void* allocate_block(std::size_t asked) {
  const std::size_t capacity = rounded(asked);
  AccountState* state = current_state;
  Block* block = nullptr;
  if (state == nullptr) {
    block = take_from_system(capacity);
    if (block == nullptr) out_of_memory(asked);
  } else {
    const std::lock_guard lock(state->mutex);
    block = state->take_kept(capacity);
    if (block == nullptr) {
      // What is resident never exceeds the most that was live at once: kept blocks of unwanted sizes give way.
      const std::size_t live = state->held - state->kept + capacity;
      state->release_kept(std::max(state->most_live, live) - live);
      block = take_from_system(capacity);
      if (block == nullptr) out_of_memory(asked);
      state->held += capacity;
    }
    state->most_live = std::max(state->most_live, state->held - state->kept);
    state->count(current_class, static_cast<int64_t>(asked));
    ++state->references;
  }
  *block = {block->memory, state, asked, capacity, current_class};
  return data_of(block);
}

void free_block(void* data) {
  if (data == nullptr) return;
  Block* block = block_of(data);
  AccountState* state = block->state;
  if (state == nullptr) {
    give_to_system(block);
    return;
  }
  bool last = false;
  {
    const std::lock_guard lock(state->mutex);
    state->count(block->memory_class, -static_cast<int64_t>(block->asked));
    if (!state->closed && block->capacity >= kept_from) {
      state->free_blocks[block->capacity].push_back(block);
      state->kept += block->capacity;
    } else {
      state->held -= block->capacity;
      give_to_system(block);
    }
    last = --state->references == 0;
  }
  if (last) delete state;
}

class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (size == 0) return {nullptr, nullptr, &free_block, device};
    void* data = allocate_block(size);
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};

}  // namespace

const char* memory_class_name(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::parameters: return "parameters";
    case MemoryClass::gradients: return "gradients";
    case MemoryClass::optimizer: return "optimizer";
    case MemoryClass::activations: return "activations";
    case MemoryClass::communication: return "communication";
    case MemoryClass::workspace: return "workspace";
  }
  return "unknown";
}

MemoryAccount::MemoryAccount() : state_(new AccountState) {}

MemoryAccount::~MemoryAccount() {
  bool last = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->release_kept(0);
    state_->closed = true;
    last = --state_->references == 0;
  }
  if (last) delete state_;
}

MemoryUse MemoryAccount::use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->use;
}

void MemoryAccount::reset_peaks() {
  const std::lock_guard lock(state_->mutex);
  state_->use.peak = state_->use.live;
  state_->use.peak_total = state_->use.live_total;
}

int64_t MemoryAccount::kept_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int64_t>(state_->kept);
}

void MemoryAccount::release_kept() {
  const std::lock_guard lock(state_->mutex);
  state_->release_kept(0);
}

AccountScope::AccountScope(MemoryAccount& account, MemoryClass memory_class)
    : previous_state_(current_state), previous_class_(current_class) {
  current_state = account.state_;
  current_class = memory_class;
}

AccountScope::~AccountScope() {
  current_state = previous_state_;
  current_class = previous_class_;
}

void install_accounting_allocator() {
  // The process's allocator has to outlive every tensor, those of other threads at exit too.
  static AccountingAllocator& allocator = *new AccountingAllocator;
  constexpr uint8_t above_default = 1;
  c10::SetCPUAllocator(&allocator, above_default);
}

}  // namespace paceline
