// FairTurns: whose request starts next when several tenants wait.
//
// Each tenant has a counter of the tokens it was served; who was served least comes next. A tenant
// that comes back after a pause starts level with the least served of those present, so that nobody
// saves up turns, and nobody who comes late has to pay for what others used before. This is the
// virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (2024),
// charged with prompt rows that were computed when a request starts and with generated tokens when
// it ends. A tenant is a Namespace::tenant: whoever shares blocks as a group takes turns as one.
//
// Invariant: a tenant with requests is never served more than all others with requests by more than
// one request's tokens per sequence that runs, while those others have requests that can start.
// Threads: the engine's. Arrive costs a walk over the tenants present.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "base/check.h"

namespace kvlink::engine {

class FairTurns {
 public:
  struct Turn {
    uint64_t served = 0;    // tokens
    uint32_t requests = 0;  // waiting and running
    uint64_t seen = 0;      // mark of the scheduler's walk over the queue
  };

  // A request of the tenant came; the answer stays valid until Leave.
  Turn* Arrive(const std::string& tenant) {
    Turn& turn = turns_[tenant];
    if (turn.requests == 0) turn.served = std::max(turn.served, LeastServed());
    ++turn.requests;
    return &turn;
  }
  void Leave(Turn* turn, uint64_t generated_tokens) {
    KVLINK_CHECK(turn->requests > 0);
    turn->served += generated_tokens;
    --turn->requests;
    // With nobody present all start level again, and tenants that were are forgotten.
    if (std::all_of(turns_.begin(), turns_.end(),
                    [](const auto& other) { return other.second.requests == 0; })) {
      turns_.clear();
    }
  }

 private:
  // Of the tenants with requests; 0: there is none.
  uint64_t LeastServed() const {
    uint64_t least = 0;
    bool any = false;
    for (const auto& [tenant, turn] : turns_) {
      if (turn.requests == 0) continue;
      least = any ? std::min(least, turn.served) : turn.served;
      any = true;
    }
    return least;
  }

  std::map<std::string, Turn> turns_;  // stable addresses
};

}  // namespace kvlink::engine
