#include "base/thread_team.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvlink::base {
namespace {

// A pause is 40 to 140 cycles. Barriers: longer than threads with equal work are usually apart;
// start: longer than the gap between two steps of a busy engine.
constexpr uint32_t kBarrierSpins = 2'000;  // some 30 us
constexpr uint32_t kStartSpins = 16'000;   // some 250 us

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// A sleeper registers before it looks at the number again (inside wait), the raiser raises before
// it looks for sleepers; both in one total order, so one of the two sees the other.
uint32_t ThreadTeam::Gate::Raise(uint32_t waking) {
  const uint32_t value = value_.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (value == waking && sleepers_.load(std::memory_order_seq_cst) > 0) value_.notify_all();
  return value;
}

void ThreadTeam::Gate::Await(uint32_t target, uint32_t spins) {
  const auto reached = [target](uint32_t value) {
    return static_cast<int32_t>(value - target) >= 0;
  };
  for (uint32_t i = 0; i < spins; ++i) {
    if (reached(value_.load(std::memory_order_acquire))) return;
    Pause();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t value; !reached(value = value_.load(std::memory_order_seq_cst));) {
    value_.wait(value, std::memory_order_seq_cst);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

ThreadTeam::ThreadTeam(int num_threads) {
  KVLINK_CHECK(num_threads >= 1) << num_threads;
  own_.resize(static_cast<size_t>(num_threads));
  workers_.reserve(own_.size() - 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadTeam::~ThreadTeam() {
  function_ = nullptr;
  start_.Raise(++num_starts_);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Work(int thread) {
  for (uint32_t start = 1;; ++start) {
    start_.Await(start, kStartSpins);
    if (function_ == nullptr) return;
    (*function_)(thread);
    Barrier(thread);
  }
}

void ThreadTeam::Run(const std::function<void(int thread)>& function) {
  function_ = &function;
  start_.Raise(++num_starts_);
  function(0);
  Barrier(0);
}

void ThreadTeam::Barrier(int thread) {
  const uint32_t target = own_[static_cast<size_t>(thread)].barrier_target +=
      static_cast<uint32_t>(own_.size());
  if (barrier_.Raise(target) != target) barrier_.Await(target, kBarrierSpins);
}

}  // namespace kvlink::base
