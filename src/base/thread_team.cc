#include "base/thread_team.h"

#include "base/check.h"

namespace kvlink::base {
namespace {

// A pause is 40 to 140 cycles. Barriers: longer than threads with equal work are usually apart;
// start: longer than the gap between two steps of a busy engine.
constexpr uint32_t kBarrierSpins = 2'000;  // some 30 us
constexpr uint32_t kStartSpins = 16'000;   // some 250 us

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once done(value), which it also hands out; spins for about `spins` pauses, then sleeps.
// True: slept.
//
// A sleeper registers before it looks at the value again (inside wait), who changes the value does
// so before looking for sleepers; both in one total order, so one of the two sees the other.
template <typename Done>
bool Await(const std::atomic<uint32_t>& value, std::atomic<uint32_t>& sleepers, uint32_t spins,
           const Done& done) {
  for (uint32_t i = 0; i < spins; ++i) {
    if (done(value.load(std::memory_order_acquire))) return false;
    Pause();
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (uint32_t seen; !done(seen = value.load(std::memory_order_seq_cst));) {
    value.wait(seen, std::memory_order_seq_cst);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

constexpr uint32_t kActiveBits = 10;

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) {
  KVLINK_CHECK(num_threads >= 1 && num_threads < 1 << kActiveBits) << num_threads;
  own_.resize(static_cast<size_t>(num_threads));
  workers_.reserve(own_.size() - 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadTeam::~ThreadTeam() {
  const std::function<void(int)> end;  // for the workers to see; lives until they are gone
  Run(num_threads(), end);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Work(int thread) {
  for (uint32_t start = 0;;) {
    Await(start_, start_sleepers_, kStartSpins, [&](uint32_t value) {
      const bool changed = value != start;
      start = value;
      return changed;
    });
    if (thread >= static_cast<int>(start % (1u << kActiveBits))) continue;
    if (!*function_) return;
    (*function_)(thread);
    Barrier(thread);
  }
}

// The members are written while no thread is active: the last run's barrier came after all that its
// threads did.
void ThreadTeam::Run(int active, const std::function<void(int thread)>& function) {
  KVLINK_CHECK(active >= 1 && active <= num_threads()) << active;
  active_ = active;
  function_ = &function;
  num_sleeps_.store(0, std::memory_order_relaxed);
  const uint32_t arrived = arrived_.load(std::memory_order_relaxed);
  for (Own& own : own_) own.target = arrived;
  if (active > 1) {
    const uint32_t run = (start_.load(std::memory_order_relaxed) >> kActiveBits) + 1;
    start_.store((run << kActiveBits) + static_cast<uint32_t>(active), std::memory_order_seq_cst);
    if (start_sleepers_.load(std::memory_order_seq_cst) > 0) start_.notify_all();
  }
  if (!function) return;
  function(0);
  Barrier(0);
}

void ThreadTeam::Barrier(int thread) {
  const uint32_t target = own_[static_cast<size_t>(thread)].target +=
      static_cast<uint32_t>(active_);
  if (arrived_.fetch_add(1, std::memory_order_seq_cst) + 1 == target) {
    if (barrier_sleepers_.load(std::memory_order_seq_cst) > 0) arrived_.notify_all();
    return;
  }
  const bool slept = Await(arrived_, barrier_sleepers_, kBarrierSpins, [target](uint32_t value) {
    return static_cast<int32_t>(value - target) >= 0;
  });
  if (slept) num_sleeps_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace kvlink::base
