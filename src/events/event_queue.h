// EventQueue: between the cache, which must not wait, and the thread that publishes.
//
// Holds so many events at most. When it is full, what comes is dropped and counted, and the place
// where that happened is kept: Take() ends a batch before it and reports the gap.
// Threads: any.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/mutex.h"
#include "events/event_batch.h"

namespace kvlink::events {

class EventQueue {
 public:
  explicit EventQueue(size_t capacity) : capacity_(capacity) {}

  // True: the queue was empty, so the reader may be asleep.
  bool Put(Event event);

  struct Batch {
    std::vector<Event> events;
    uint64_t dropped_before = 0;  // events lost between the last batch and this one
    bool empty() const { return events.empty() && dropped_before == 0; }
  };
  // At most `most` events; what was dropped behind them shows with the next batch.
  Batch Take(size_t most);

  uint64_t dropped() const;

 private:
  struct Entry {
    Event event;
    uint64_t dropped_before = 0;
  };
  const size_t capacity_;
  mutable base::Mutex mutex_;
  std::deque<Entry> entries_ KVLINK_GUARDED_BY(mutex_);
  uint64_t dropped_at_end_ KVLINK_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ KVLINK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvlink::events
