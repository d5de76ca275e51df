// Clock: time is passed in, so that tests set it. Steady time only; no room reads the wall clock.
#pragma once

#include <chrono>
#include <functional>

namespace kvlink::base {

using TimePoint = std::chrono::steady_clock::time_point;
using Clock = std::function<TimePoint()>;

inline Clock SteadyClock() {
  return [] { return std::chrono::steady_clock::now(); };
}

// A clock that stands until it is told to move. The clock() it hands out must not outlive it. Not
// thread-safe.
class FakeClock {
 public:
  TimePoint now() const { return now_; }
  void Advance(std::chrono::steady_clock::duration by) { now_ += by; }
  Clock clock() {
    return [this] { return now_; };
  }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace kvlink::base
