#include "cli/signal_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

namespace kvlink::cli {

SignalWatch::SignalWatch() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGHUP);
  sigaddset(&signals_, SIGUSR2);  // the destructor's own
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { Watch(); });
}

SignalWatch::~SignalWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

void SignalWatch::OnSignal(std::function<void(int)> action) {
  const std::lock_guard lock(mutex_);
  action_ = std::move(action);
}

void SignalWatch::Watch() {
  while (true) {
    int number = 0;
    if (sigwait(&signals_, &number) != 0) continue;
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (number == SIGUSR2) continue;
    if (action_) {
      action_(number);
    } else {
      _exit(128 + number);
    }
  }
}

}  // namespace kvlink::cli
