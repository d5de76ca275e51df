#include "events/event_queue.h"

#include <utility>

namespace kvlink::events {

bool EventQueue::Put(Event event) {
  const base::MutexLock lock(mutex_);
  const bool was_empty = entries_.empty() && dropped_at_end_ == 0;
  if (entries_.size() >= capacity_) {
    ++dropped_at_end_;
    ++dropped_;
    return was_empty;
  }
  entries_.push_back({std::move(event), std::exchange(dropped_at_end_, 0)});
  return was_empty;
}

EventQueue::Batch EventQueue::Take(size_t most) {
  const base::MutexLock lock(mutex_);
  Batch batch;
  while (!entries_.empty() && batch.events.size() < most) {
    Entry& next = entries_.front();
    if (next.dropped_before > 0) {
      if (!batch.events.empty()) break;
      batch.dropped_before = next.dropped_before;
    }
    batch.events.push_back(std::move(next.event));
    entries_.pop_front();
  }
  if (batch.events.empty()) batch.dropped_before = std::exchange(dropped_at_end_, 0);
  return batch;
}

uint64_t EventQueue::dropped() const {
  const base::MutexLock lock(mutex_);
  return dropped_;
}

}  // namespace kvlink::events
