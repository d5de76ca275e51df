#include "server/drain_rate.h"

#include <algorithm>
#include <cmath>

namespace kvlink::server {

void DrainRate::Left(uint32_t places) {
  if (places == 0) return;
  const base::TimePoint now = clock_();
  const std::lock_guard lock(mutex_);
  departures_.push_back({now, places});
  places_ += places;
  if (departures_.size() <= kRemembered) return;
  places_ -= departures_.front().places;
  departures_.pop_front();
}

// The first departure began the time that is looked at; the others came in it.
double DrainRate::RateAt(base::TimePoint now) const {
  if (departures_.size() < 2) return 0;
  const double seconds = std::chrono::duration<double>(now - departures_.front().at).count();
  return static_cast<double>(places_ - departures_.front().places) / std::max(seconds, 1e-3);
}

double DrainRate::rate() const {
  const base::TimePoint now = clock_();
  const std::lock_guard lock(mutex_);
  return RateAt(now);
}

int DrainRate::RetryAfter(uint32_t places) {
  const base::TimePoint now = clock_();
  const std::lock_guard lock(mutex_);
  const double speed = RateAt(now);
  if (speed <= 0) return 1;
  const auto most = std::chrono::seconds(kMostSeconds);
  const double seconds = std::min<double>(places / speed, kMostSeconds);
  promised_ = std::max(promised_, now) + std::chrono::duration_cast<base::TimePoint::duration>(
                                             std::chrono::duration<double>(seconds));
  promised_ = std::min(promised_, now + most);
  const double wait = std::chrono::duration<double>(promised_ - now).count();
  return std::clamp(static_cast<int>(std::ceil(wait)), 1, kMostSeconds);
}

}  // namespace kvlink::server
