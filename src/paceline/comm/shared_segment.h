#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace paceline {

/// A piece of memory that the ranks of one machine share: a doorbell for each rank and a ring of bytes for each ordered
/// pair. It has no name and goes away with the last process that maps it.
class SharedSegment {
 public:
  static constexpr std::size_t ring_bytes = 4 << 20;
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

  /// What others need to open a segment.
  struct Handle {
    std::int64_t process = 0;
    std::int64_t descriptor = -1;
    std::uint64_t cookie = 0;
  };

  /// Rung when something changes that a rank may be waiting for.
  struct alignas(64) Doorbell {
    std::atomic<std::uint32_t> rings;
    std::atomic<std::uint32_t> sleepers;
  };

  /// Bytes written and read since the beginning, by the sender and the receiver alone.
  struct Ring {
    alignas(64) std::atomic<std::uint64_t> written;
    alignas(64) std::atomic<std::uint64_t> read;
    alignas(64) std::byte data[ring_bytes];
  };

  /// For `ranks` ranks; nothing where the system refuses.
  static std::unique_ptr<SharedSegment> create(int ranks);
  static std::unique_ptr<SharedSegment> open(const Handle& handle, int ranks);
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;
  ~SharedSegment();

  Handle handle() const;
  Ring& ring(int sender, int receiver);

  /// Takes this rank's place, which is given up when the process ends; false where the system refuses.
  bool enter(int rank);
  /// Whether the process of a rank that has entered still lives.
  bool is_present(int rank) const;

  /// To be read before looking for what is waited for, and handed to `sleep`.
  std::uint32_t rings(int rank) { return doorbell(rank).rings.load(std::memory_order_seq_cst); }
  /// Wakes all sleepers of that rank.
  void ring_doorbell(int rank);
  /// Returns when the rank's doorbell was rung since `rings` was read, or after the limit.
  void sleep(int rank, std::uint32_t rings, std::chrono::milliseconds limit);

 private:
  SharedSegment(int descriptor, std::byte* memory, int ranks);
  static std::size_t total_bytes(int ranks);
  static std::unique_ptr<SharedSegment> map(int descriptor, int ranks);
  std::atomic<std::uint64_t>& cookie() const;
  Doorbell& doorbell(int rank);

  int descriptor_;
  std::byte* memory_;
  int ranks_;
};

}  // namespace paceline
