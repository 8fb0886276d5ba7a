#include "paceline/comm/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <string>

namespace paceline {
namespace {

constexpr std::size_t header_bytes = 4096;  ///< the cookie

struct flock byte_lock(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::size_t SharedSegment::total_bytes(int ranks) {
  return header_bytes + ranks * sizeof(Doorbell) + static_cast<std::size_t>(ranks) * ranks * sizeof(Ring);
}

SharedSegment::SharedSegment(int descriptor, std::byte* memory, int ranks)
    : descriptor_(descriptor), memory_(memory), ranks_(ranks) {}

SharedSegment::~SharedSegment() {
  munmap(memory_, total_bytes(ranks_));
  close(descriptor_);
}

std::unique_ptr<SharedSegment> SharedSegment::map(int descriptor, int ranks) {
  void* memory = mmap(nullptr, total_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) {
    close(descriptor);
    return nullptr;
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(descriptor, static_cast<std::byte*>(memory), ranks));
}

std::unique_ptr<SharedSegment> SharedSegment::create(int ranks) {
  const int descriptor = memfd_create("paceline", MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::uint64_t random = 0;
  if (ftruncate(descriptor, static_cast<off_t>(total_bytes(ranks))) != 0 ||
      getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    close(descriptor);
    return nullptr;
  }
  auto segment = map(descriptor, ranks);
  if (segment != nullptr) segment->cookie() = random;
  return segment;
}

std::unique_ptr<SharedSegment> SharedSegment::open(const Handle& handle, int ranks) {
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  if (lseek(descriptor, 0, SEEK_END) != static_cast<off_t>(total_bytes(ranks))) {
    close(descriptor);
    return nullptr;
  }
  auto segment = map(descriptor, ranks);
  if (segment != nullptr && segment->cookie() != handle.cookie) segment.reset();
  return segment;
}

SharedSegment::Handle SharedSegment::handle() const {
  return {.process = getpid(), .descriptor = descriptor_, .cookie = cookie()};
}

std::atomic<std::uint64_t>& SharedSegment::cookie() const {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_);
}

SharedSegment::Doorbell& SharedSegment::doorbell(int rank) {
  return reinterpret_cast<Doorbell*>(memory_ + header_bytes)[rank];
}

SharedSegment::Ring& SharedSegment::ring(int sender, int receiver) {
  std::byte* rings = memory_ + header_bytes + ranks_ * sizeof(Doorbell);
  return reinterpret_cast<Ring*>(rings)[sender * ranks_ + receiver];
}

bool SharedSegment::enter(int rank) {
  struct flock lock = byte_lock(rank);
  return fcntl(descriptor_, F_OFD_SETLK, &lock) == 0;
}

bool SharedSegment::is_present(int rank) const {
  struct flock lock = byte_lock(rank);
  return fcntl(descriptor_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void SharedSegment::ring_doorbell(int rank) {
  Doorbell& bell = doorbell(rank);
  bell.rings.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleepers.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, &bell.rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void SharedSegment::sleep(int rank, std::uint32_t rings, std::chrono::milliseconds limit) {
  Doorbell& bell = doorbell(rank);
  const timespec time{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &bell.rings, FUTEX_WAIT, rings, &time, nullptr, 0);
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace paceline
