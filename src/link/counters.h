// Counters of CacheStats, which only grow. Atomic, because lookups count from any thread; relaxed,
// because nothing is ordered by them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kvlink/cache.h"

namespace kvlink::link {

class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct Counters {
  Counter lookups, queried_tokens, exact_tokens, partial_tokens;
  std::array<Counter, static_cast<size_t>(MissReason::kCount)> misses;
  Counter collisions, stored_blocks, evicted_blocks;
  Counter cow_full_copies, cow_difference_blocks;
  Counter single_flight_waits, single_flight_takeovers;
  Counter fallbacks, output_splices, match_ns;
  Counter loads, loaded_tokens, failed_loads, unwritten_blocks;
  std::array<Counter, static_cast<size_t>(SimilarReason::kCount)> similar_outcomes;
  Counter similar_tokens, similar_attempts, similar_enlarged, similar_waits, similar_match_ns;
  Counter shadows, shadow_failures;
  struct OfClass {
    Counter trials, failures;
  };
  std::array<OfClass, static_cast<size_t>(EditClass::kCount)> shadows_by_class;

  void CountOutcome(SimilarReason reason) { similar_outcomes[static_cast<size_t>(reason)].Add(); }

  void CopyTo(CacheStats* stats) const {
    stats->lookups = lookups.value();
    stats->queried_tokens = queried_tokens.value();
    stats->exact_tokens = exact_tokens.value();
    stats->partial_tokens = partial_tokens.value();
    for (size_t i = 0; i < misses.size(); ++i) stats->misses[i] = misses[i].value();
    stats->collisions = collisions.value();
    stats->stored_blocks = stored_blocks.value();
    stats->evicted_blocks = evicted_blocks.value();
    stats->cow_full_copies = cow_full_copies.value();
    stats->cow_difference_blocks = cow_difference_blocks.value();
    stats->single_flight_waits = single_flight_waits.value();
    stats->single_flight_takeovers = single_flight_takeovers.value();
    stats->fallbacks = fallbacks.value();
    stats->output_splices = output_splices.value();
    stats->match_ns = match_ns.value();
    stats->loads = loads.value();
    stats->loaded_tokens = loaded_tokens.value();
    stats->failed_loads = failed_loads.value();
    stats->unwritten_blocks = unwritten_blocks.value();
    for (size_t i = 0; i < similar_outcomes.size(); ++i) {
      stats->similar_outcomes[i] = similar_outcomes[i].value();
    }
    stats->similar_tokens = similar_tokens.value();
    stats->similar_attempts = similar_attempts.value();
    stats->similar_enlarged = similar_enlarged.value();
    stats->similar_waits = similar_waits.value();
    stats->similar_match_ns = similar_match_ns.value();
    stats->shadows = shadows.value();
    stats->shadow_failures = shadow_failures.value();
    for (size_t i = 0; i < shadows_by_class.size(); ++i) {
      stats->shadows_by_class[i] = {shadows_by_class[i].trials.value(),
                                    shadows_by_class[i].failures.value()};
    }
  }
};

}  // namespace kvlink::link
