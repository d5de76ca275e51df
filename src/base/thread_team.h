// ThreadTeam: a fixed set of threads that run one function together, with barriers inside.
//
// The caller of Run is thread 0. A waiting thread spins for a while, since the others usually
// arrive within microseconds, and then sleeps: on a machine with more runnable threads than cores,
// spinning would keep the late one from its core. Idle workers sleep too.
//
// Threads: a team belongs to the thread that made it. Barrier is for the function.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace kvlink::base {

class ThreadTeam {
 public:
  explicit ThreadTeam(int num_threads);  // 1 to 1023
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(thread) once on each of the first `active` threads and returns when all are
  // through. The others stay idle.
  void Run(int active, const std::function<void(int thread)>& function);

  // Returns when all active threads are here; what they wrote before is visible.
  void Barrier(int thread);

  // Barriers of the last Run at which some thread had to sleep: more than a few mean that threads
  // wait for cores.
  uint32_t num_sleeps() const { return num_sleeps_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Own {
    uint32_t target = 0;  // of arrived_ at the next barrier
  };

  void Work(int thread);

  // Number of the run * 1024 + active threads, in one word, since an idle worker may look late.
  alignas(64) std::atomic<uint32_t> start_{0};
  std::atomic<uint32_t> start_sleepers_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};  // at barriers, in all; wraps
  std::atomic<uint32_t> barrier_sleepers_{0};
  std::atomic<uint32_t> num_sleeps_{0};
  int active_ = 0;
  const std::function<void(int)>* function_ = nullptr;  // empty: the workers end
  std::vector<Own> own_;                                // by thread
  std::vector<std::thread> workers_;
};

}  // namespace kvlink::base
