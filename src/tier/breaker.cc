#include "tier/breaker.h"

#include <algorithm>

namespace kvlink::tier {

bool Breaker::TakeTrial() {
  const base::MutexLock lock(mutex_);
  if (state() != BreakerState::kOpen || clock_() < trial_at_) return false;
  state_.store(BreakerState::kHalfOpen, std::memory_order_release);
  return true;
}

std::chrono::steady_clock::duration Breaker::UntilTrial() const {
  const base::MutexLock lock(mutex_);
  if (state() != BreakerState::kOpen) return {};
  return std::max(trial_at_ - clock_(), std::chrono::steady_clock::duration{});
}

void Breaker::RecordSuccess() {
  const base::MutexLock lock(mutex_);
  failures_ = 0;
  // A call that began before the breaker opened proves nothing: only the trial closes it.
  if (state() != BreakerState::kHalfOpen) return;
  pause_ = {};
  state_.store(BreakerState::kClosed, std::memory_order_release);
}

void Breaker::RecordFailure() {
  const base::MutexLock lock(mutex_);
  if (state() == BreakerState::kHalfOpen) {
    Open();
  } else if (state() == BreakerState::kClosed && ++failures_ >= options_.failures) {
    Open();
  }
}

void Breaker::Open() {
  const std::chrono::steady_clock::duration longest = options_.max_pause;
  pause_ = pause_ == std::chrono::steady_clock::duration{}
               ? std::chrono::steady_clock::duration{options_.first_pause}
               : std::min(2 * pause_, longest);
  failures_ = 0;
  trial_at_ = clock_() + pause_;
  openings_.fetch_add(1, std::memory_order_relaxed);
  state_.store(BreakerState::kOpen, std::memory_order_release);
}

}  // namespace kvlink::tier
