// SignalWatch: SIGINT, SIGTERM and SIGHUP as calls on a thread of its own, where locks and
// allocation are allowed.
//
// Create it before any other thread, so that all inherit the blocked signals. Until OnSignal gives
// it something to do, a signal ends the process at once (a model that loads for minutes can be
// interrupted).
#pragma once

#include <csignal>
#include <functional>
#include <mutex>
#include <thread>

namespace kvlink::cli {

class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // `action(number)` runs for each signal from now on; an empty one ends the process again. On
  // return no earlier action runs any more.
  void OnSignal(std::function<void(int number)> action);

 private:
  void Watch();

  sigset_t signals_;
  std::mutex mutex_;
  std::function<void(int)> action_;  // guarded by mutex_
  bool stopping_ = false;            // guarded by mutex_
  std::thread thread_;
};

}  // namespace kvlink::cli
