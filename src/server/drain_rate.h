// DrainRate: how fast places come free, and so when somebody who was refused should come back.
//
// The rate is that of the last departures, of which kRemembered are known, over the time since the
// first of them: when nothing leaves any more the rate falls. Whoever is refused is told a time at
// which a place should be free for it *behind* those who were told a time before, so that a crowd
// that was refused at once does not come back at once. Estimates are promises to nobody: who comes
// at its time is refused again if somebody else was faster.
// Thread-safe. Cost: O(1).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "base/clock.h"

namespace kvlink::server {

class DrainRate {
 public:
  static constexpr size_t kRemembered = 64;
  static constexpr int kMostSeconds = 600;
  explicit DrainRate(base::Clock clock) : clock_(std::move(clock)) {}

  void Left(uint32_t places);
  // Seconds, 1 to kMostSeconds, until `places` should be free for this one. 1 while no rate is
  // known.
  int RetryAfter(uint32_t places);
  // Places a second; 0: not known.
  double rate() const;

 private:
  struct Departure {
    base::TimePoint at;
    uint32_t places = 0;
  };
  double RateAt(base::TimePoint now) const;  // with mutex_ held

  const base::Clock clock_;
  mutable std::mutex mutex_;
  std::deque<Departure> departures_;  // guarded by mutex_; oldest first
  uint64_t places_ = 0;               // guarded by mutex_; of departures_
  base::TimePoint promised_{};        // guarded by mutex_; the last time that was told
};

}  // namespace kvlink::server
