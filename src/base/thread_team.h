// ThreadTeam: a fixed set of threads that run one function together, with barriers inside.
//
// The caller of Run is thread 0. A waiting thread spins for a while, since the others usually
// arrive within microseconds, and then sleeps: on a machine with more runnable threads than cores,
// spinning would keep the late one from its core. Idle workers sleep too.
//
// Threads: a team belongs to the thread that made it. Barrier and Claim are for the function.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace kvlink::base {

class ThreadTeam {
 public:
  explicit ThreadTeam(int num_threads);  // at least 1
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(thread) once on each thread and returns when all are through.
  void Run(const std::function<void(int thread)>& function);

  // Returns when all threads are here; what they wrote before is visible.
  void Barrier(int thread);

 private:
  // A number that rises (and wraps), for others to wait until it has reached some value.
  class alignas(64) Gate {
   public:
    // The new value. Wakes sleepers when it is `waking`.
    uint32_t Raise(uint32_t waking);
    // Spins for about `spins` pauses, then sleeps.
    void Await(uint32_t target, uint32_t spins);

   private:
    std::atomic<uint32_t> value_{0};
    std::atomic<uint32_t> sleepers_{0};
  };
  struct alignas(64) Own {
    uint32_t barrier_target = 0;
  };

  void Work(int thread);

  Gate start_, barrier_;  // runs begun; threads arrived, in all
  uint32_t num_starts_ = 0;
  const std::function<void(int)>* function_ = nullptr;  // null: the workers end
  std::vector<Own> own_;                                // by thread
  std::vector<std::thread> workers_;
};

}  // namespace kvlink::base
