// WritePace: how much CPU time the writers of a TierStore may take while an engine computes.
//
//   BeginStep                 requests are computed from now on: writers go on only with credit
//   EndStep(cpu_us)           that was the CPU time of the step: `share` of it is earned
//   Spend(cpu_us)             what a batch took, measured; it may overdraw, then the next ones wait
//   longer no step for kIdle  writers go on without credit and spend none
//
// A store without pace writes at once: the engine decides before what is worth it (docs/adr/0016).
// With one the queue is what waits, so that a burst of new blocks costs no step more than its
// share; docs/adr/0026 says why.
//
// Invariant: beside steps, writing takes at most share of their CPU time, the head start, and one
// batch a tier. Threads: any.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvlink::tier {

class WritePace {
 public:
  static constexpr std::chrono::milliseconds kIdle{20};
  static constexpr double kHeadStartUs = 100'000, kMostCreditUs = 1'000'000;

  // share: at least 0 (beside steps nothing is written); from 1 on nothing waits.
  WritePace(double share, base::Clock clock)
      : share_(share),
        clock_(std::move(clock)),
        idle_from_(clock_()),
        credit_us_(share > 0 ? kHeadStartUs : 0) {}

  void BeginStep() {
    const base::MutexLock lock(mutex_);
    is_computing_ = true;
  }
  void EndStep(double cpu_us) {
    const base::MutexLock lock(mutex_);
    is_computing_ = false;
    idle_from_ = clock_() + kIdle;
    credit_us_ = std::min(credit_us_ + share_ * std::max(cpu_us, 0.0), kMostCreditUs);
  }
  bool MayWrite() const {
    const base::MutexLock lock(mutex_);
    return credit_us_ > 0 || IsFree();
  }
  void Spend(double cpu_us) {
    const base::MutexLock lock(mutex_);
    if (!IsFree()) credit_us_ -= cpu_us;
  }
  double credit_us() const {
    const base::MutexLock lock(mutex_);
    return credit_us_;
  }

 private:
  bool IsFree() const KVLINK_REQUIRES(mutex_) {
    return share_ >= 1 || (!is_computing_ && clock_() >= idle_from_);
  }

  const double share_;
  const base::Clock clock_;
  mutable base::Mutex mutex_;
  bool is_computing_ KVLINK_GUARDED_BY(mutex_) = false;
  base::TimePoint idle_from_ KVLINK_GUARDED_BY(mutex_);
  double credit_us_ KVLINK_GUARDED_BY(mutex_);
};

}  // namespace kvlink::tier
