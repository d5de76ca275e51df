// FairTurns: whose request starts next when several tenants wait.
//
// Each tenant has a counter of the tokens it was served, divided by its weight; who was served
// least comes next, so that over time a tenant of weight 3 is served three times as much as one of
// weight 1, as long as both have something waiting. A tenant that comes back after a pause starts
// level with the least served of those present, so that nobody saves up turns, and nobody who comes
// late has to pay for what others used before. This is the virtual token counter of Sheng et al.,
// "Fairness in Serving Large Language Models" (2024), charged with prompt rows that were computed
// when a request starts and with generated tokens when it ends, or when a branch of it begins that
// had to wait for another one's end. A tenant is a Namespace::tenant: whoever shares blocks as a
// group takes turns as one.
//
// Invariant: a tenant with requests is never served more (by weight) than all others with requests
// by more than one request's tokens per sequence that runs, while those others have requests that
// can start.
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
    double served = 0;      // tokens / weight
    uint32_t weight = 1;    // of its last request
    uint32_t requests = 0;  // waiting and running
    uint64_t seen = 0;      // mark of the scheduler's walk over the queue
    // Its quota of KV is full: none of its requests starts until one of them gives pages back.
    bool closed = false;

    void Charge(uint64_t tokens) { served += static_cast<double>(tokens) / weight; }
  };

  // A request of the tenant came; the answer stays valid until Leave. Requires: weight > 0.
  Turn* Arrive(const std::string& tenant, uint32_t weight = 1) {
    KVLINK_CHECK(weight > 0);
    Turn& turn = turns_[tenant];
    if (turn.requests == 0) turn.served = std::max(turn.served, LeastServed());
    turn.weight = weight;
    ++turn.requests;
    return &turn;
  }
  void Leave(Turn* turn, uint64_t generated_tokens) {
    KVLINK_CHECK(turn->requests > 0);
    turn->Charge(generated_tokens);
    --turn->requests;
    // With nobody present all start level again, and tenants that were are forgotten.
    if (std::all_of(turns_.begin(), turns_.end(),
                    [](const auto& other) { return other.second.requests == 0; })) {
      turns_.clear();
    }
  }

 private:
  // Of the tenants with requests; 0: there is none.
  double LeastServed() const {
    double least = 0;
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
