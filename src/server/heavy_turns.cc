#include "server/heavy_turns.h"

#include <utility>

namespace kvlink::server {

void HeavyTurns::Enter(std::function<void()> start) {
  {
    const std::lock_guard lock(mutex_);
    if (free_ == 0) return waiting_.push_back(std::move(start));
    --free_;
  }
  start();
}

void HeavyTurns::Leave() {
  std::function<void()> next;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      ++free_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next();
}

}  // namespace kvlink::server
