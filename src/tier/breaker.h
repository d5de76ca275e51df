// Breaker: keeps callers away from a tier that fails.
//
//   closed --failures in a row--> open --pause over--> half open --one success--> closed
//                                   ^------------- failure (pause doubles) ------'
//
// Only what says something about the tier's health counts: timeouts, lost connections, input and
// output errors; not misses, corrupt blocks or a full budget. Pauses double up to max_pause.
// Threads: any. Cost: an atomic load while closed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvlink::tier {

struct BreakerOptions {
  uint32_t failures = 3;  // in a row
  std::chrono::milliseconds first_pause{200};
  std::chrono::milliseconds max_pause{5000};
};

enum class BreakerState : uint8_t { kClosed, kOpen, kHalfOpen };
const char* BreakerStateName(BreakerState state);

class Breaker {
 public:
  Breaker(const BreakerOptions& options, base::Clock clock)
      : options_(options), clock_(std::move(clock)) {}

  bool closed() const { return state() == BreakerState::kClosed; }
  BreakerState state() const { return state_.load(std::memory_order_acquire); }
  uint64_t openings() const { return openings_.load(std::memory_order_relaxed); }

  // The pause is over: the caller, and no other until it reports, tries the tier (half open).
  bool TakeTrial();
  // How long until TakeTrial can be true; 0 when closed or due.
  std::chrono::steady_clock::duration UntilTrial() const;

  void RecordSuccess();
  void RecordFailure();

 private:
  void Open() KVLINK_REQUIRES(mutex_);

  const BreakerOptions options_;
  const base::Clock clock_;
  std::atomic<BreakerState> state_{BreakerState::kClosed};
  std::atomic<uint64_t> openings_{0};
  mutable base::Mutex mutex_;
  uint32_t failures_ KVLINK_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::duration pause_ KVLINK_GUARDED_BY(mutex_){0};
  base::TimePoint trial_at_ KVLINK_GUARDED_BY(mutex_);
};

inline const char* BreakerStateName(BreakerState state) {
  switch (state) {
    case BreakerState::kClosed:
      return "closed";
    case BreakerState::kOpen:
      return "open";
    case BreakerState::kHalfOpen:
      return "half_open";
  }
  return "unknown";
}

}  // namespace kvlink::tier
