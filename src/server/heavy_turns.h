// HeavyTurns: how many large requests are read (parsed, rendered, tokenised) at once, so that a
// thread is left for everybody else: with megabytes of text that takes seconds, and the threads
// that do it also carry all answers.
//
// Thread-safe. Cost: a lock.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace kvlink::server {

class HeavyTurns {
 public:
  explicit HeavyTurns(size_t most = 1) : free_(most) {}
  // Before anybody enters.
  void Add(size_t more) { free_ += more; }
  // `start` is called when it is its turn: now, or by who leaves, in the order of entering. It must
  // return at once (post what is to be done). Every start is followed by one Leave.
  void Enter(std::function<void()> start);
  void Leave();

 private:
  std::mutex mutex_;
  size_t free_;                                // guarded by mutex_
  std::deque<std::function<void()>> waiting_;  // likewise; empty while any turn is free
};

}  // namespace kvlink::server
