// EventInbox: the queue of values between the engine thread and the strand of one HTTP request.
//
// Push never blocks and never runs the receiver: it wakes it (once until the next Take). The queue
// is bounded: beyond `capacity` tokens are dropped and the inbox says so, whereupon the request is
// cancelled; ends of requests always fit. After Close nothing is kept and nobody is woken, so the
// receiver may go away.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace kvlink::server {

class EventInbox {
 public:
  struct Item {
    uint32_t prompt = 0;  // which of the HTTP request's prompts
    engine::Event event;
  };

  // `wake` is called on the pushing thread under the inbox's lock; it may only post.
  EventInbox(size_t capacity, std::function<void()> wake)
      : capacity_(capacity), wake_(std::move(wake)) {}

  void Push(uint32_t prompt, const engine::Event& event) {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    if (event.kind == engine::Event::Kind::kToken && items_.size() >= capacity_) {
      overflowed_ = true;
    } else {
      items_.push_back({prompt, event});
    }
    if (!std::exchange(awake_, true)) wake_();
  }

  std::vector<Item> Take() {
    const std::lock_guard lock(mutex_);
    awake_ = false;
    return std::exchange(items_, {});
  }

  bool overflowed() const {
    const std::lock_guard lock(mutex_);
    return overflowed_;
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    items_.clear();
    wake_ = nullptr;
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;  // guarded by mutex_, as everything below
  std::vector<Item> items_;
  bool awake_ = false, overflowed_ = false, closed_ = false;
};

}  // namespace kvlink::server
