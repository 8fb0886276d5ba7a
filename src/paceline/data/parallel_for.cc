#include "paceline/data/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace paceline {

int default_workers() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void parallel_for(std::size_t count, int workers, const std::function<void(int, std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  std::size_t error_index = count;
  const auto run = [&](int worker) {
    for (std::size_t index = next++; index < count; index = next++) {
      try {
        work(worker, index);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (index < error_index) {
          error_index = index;
          error = std::current_exception();
        }
        next = count;
      }
    }
  };
  std::vector<std::jthread> threads;
  const int extra = static_cast<int>(std::min<std::size_t>(count, static_cast<std::size_t>(std::max(workers, 1)))) - 1;
  for (int worker = 1; worker <= extra; ++worker) threads.emplace_back(run, worker);
  run(0);
  threads.clear();
  if (error) std::rethrow_exception(error);
}

}  // namespace paceline
