// MemoryWatch: acts on a shortage of memory before the system ends the process for it.
//
//   available memory          what is done
//   below the reserve         the cache does without more of its budget at each look: cached blocks
//                             give way, and their memory goes back to the system
//   below half of it          besides, new requests are refused (503) until it is above again
//   above twice the reserve   the cache gets its budget back, a step at a look
//
// What runs goes on, and gets the pages that it needs. Available is what the machine has, or what
// the control group leaves if that is less; where nobody knows it nothing is done.
// Threads: Look on one thread (its own, after Start); all else on any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace kvlink::server {

struct MemoryWatchOptions {
  uint64_t reserve_bytes = 0;  // 0: nothing is watched
  uint64_t step_bytes = uint64_t{256} << 20;
  std::chrono::milliseconds period{500};
  std::function<uint64_t()> available;  // bytes; 0: not known
};

// What it does with the cache.
struct CacheMemory {
  uint64_t budget_bytes = 0;
  std::function<uint64_t()> free_bytes;          // of the budget, now
  std::function<void(uint64_t bytes)> withhold;  // Engine::Withhold
};

class MemoryWatch {
 public:
  MemoryWatch(MemoryWatchOptions options, CacheMemory cache);
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  void Start();  // looks every period from now on
  void Look();
  // New work is to be refused now.
  bool refuses() const { return refuses_; }

  struct Figures {
    uint64_t available_bytes = 0, reserve_bytes = 0;
    uint64_t shortages = 0;  // looks that found less than the reserve
  };
  Figures figures() const { return {available_, options_.reserve_bytes, shortages_}; }

 private:
  const MemoryWatchOptions options_;
  const CacheMemory cache_;
  uint64_t withheld_ = 0;  // Look's own
  std::atomic<bool> refuses_{false};
  std::atomic<uint64_t> available_{0}, shortages_{0};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvlink::server
