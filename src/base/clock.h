// Clock: time is passed in, so that tests set it. Steady time only; no room reads the wall clock.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace kvlink::base {

using TimePoint = std::chrono::steady_clock::time_point;
using Clock = std::function<TimePoint()>;

inline Clock SteadyClock() {
  return [] { return std::chrono::steady_clock::now(); };
}

// A clock that stands until one thread tells it to move; any may read it. The clock() it hands out
// must not outlive it.
class FakeClock {
 public:
  TimePoint now() const { return now_; }
  void Advance(std::chrono::steady_clock::duration by) { now_ = now_.load() + by; }
  Clock clock() {
    return [this] { return now_.load(); };
  }

 private:
  std::atomic<TimePoint> now_{TimePoint(std::chrono::hours(1))};
};

}  // namespace kvlink::base
