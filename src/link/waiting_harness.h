// An engine in small, for tests of requests that wait for what others compute.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "link/cache_harness.h"

namespace kvlink::link {

template <typename Begun>
struct WaitingRequest {
  Tokens prompt;
  std::optional<InFlight> wait;
  std::optional<Begun> running;
  bool done = false;
};

// Every step, each waiting request looks whether it may start: `try_start(request)`; and each
// running one computes a chunk: `compute(request)`, true when it is complete. `at_step(step,
// requests)` may interfere.
template <typename Begun, typename AtStep, typename TryStart, typename Compute>
void RunToTheEnd(std::vector<WaitingRequest<Begun>>& requests, AtStep at_step, TryStart try_start,
                 Compute compute) {
  for (int step = 0; step < 10000; ++step) {
    at_step(step, requests);
    bool all_done = true;
    for (WaitingRequest<Begun>& request : requests) {
      all_done = all_done && request.done;
      if (request.done) continue;
      if (!request.running) try_start(request);
      if (!request.running || !compute(request)) continue;
      request.running.reset();
      request.done = true;
    }
    if (all_done) return;
  }
  ADD_FAILURE() << "not done after 10,000 steps";
}

}  // namespace kvlink::link
