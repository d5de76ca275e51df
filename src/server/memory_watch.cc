#include "server/memory_watch.h"

#include <algorithm>
#include <utility>

namespace kvlink::server {

MemoryWatch::MemoryWatch(MemoryWatchOptions options, CacheMemory cache)
    : options_(std::move(options)), cache_(std::move(cache)) {}

MemoryWatch::~MemoryWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MemoryWatch::Start() {
  if (options_.reserve_bytes == 0 || !options_.available) return;
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      lock.unlock();
      Look();
      lock.lock();
      wake_.wait_for(lock, options_.period, [this] { return stop_; });
    }
  });
}

void MemoryWatch::Look() {
  if (options_.reserve_bytes == 0 || !options_.available) return;
  const uint64_t available = options_.available(), reserve = options_.reserve_bytes;
  available_ = available;
  refuses_ = available > 0 && available < reserve / 2;
  if (available == 0) return;
  uint64_t wanted = withheld_;
  if (available < reserve) {
    shortages_ += 1;
    // Pages that were never touched give nothing back: what is withheld must go beyond those.
    const uint64_t more = std::max(reserve - available, options_.step_bytes);
    wanted = std::min(std::max(withheld_, cache_.free_bytes()) + more, cache_.budget_bytes);
  } else if (available > 2 * reserve) {
    wanted -= std::min(wanted, options_.step_bytes);
  }
  if (wanted == withheld_) return;
  withheld_ = wanted;
  cache_.withhold(wanted);
}

}  // namespace kvlink::server
