// CacheStats: what a cache holds now and what it has done since it was made, as one consistent
// copy. Gauges say what is now (free + cached + in use == total pages), counters never decrease.
// Taking one costs a walk over the tenants at most, never over the blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kvlink/lookup.h"
#include "kvlink/similar.h"

namespace kvlink {

struct CacheStats {
  // Pages. free + cached + in_use == total.
  uint64_t total_pages = 0, free_pages = 0, cached_pages = 0, in_use_pages = 0;
  uint64_t page_bytes = 0;
  uint64_t in_use_bytes = 0, peak_in_use_bytes = 0, cached_bytes = 0, budget_bytes = 0,
           pinned_bytes = 0;
  // What sequences would hold if each had a copy of all rows it reads, and of the bytes in use
  // those that two or more hold together. Sharing saves without_sharing_bytes - in_use_bytes (less
  // than 0 when what is borrowed from takes more than the borrower).
  uint64_t without_sharing_bytes = 0, shared_bytes = 0;
  uint64_t tracking_bytes = 0;  // all structures that track blocks (index, graph, tokens)
  // Counters, never decreasing. Tokens and misses count when a sequence begins, so that a request
  // that is looked up many times counts once: queried = its prompt, exact + partial = the prompt
  // rows that it need not compute.
  uint64_t lookups = 0, queried_tokens = 0, exact_tokens = 0, partial_tokens = 0,
           similar_tokens = 0;
  std::array<uint64_t, static_cast<size_t>(MissReason::kCount)> misses{};
  uint64_t collisions = 0;  // key equal, tokens or parent not
  uint64_t stored_blocks = 0, evicted_blocks = 0;
  uint64_t cow_full_copies = 0, cow_difference_blocks = 0;
  uint64_t single_flight_waits = 0, single_flight_takeovers = 0;
  uint64_t fallbacks = 0;       // a plan that could not be honoured became computing
  uint64_t output_splices = 0;  // own outputs recognised in later prompts
  // Similar reuse. `similar_outcomes` counts how each request that asked for it ended (kNone:
  // accepted), once a Begin; those that were cancelled before their verdict count nowhere.
  // similar_tokens are the donor's rows in accepted requests, similar_waits the lookups that found
  // a donor which is still being computed.
  std::array<uint64_t, static_cast<size_t>(SimilarReason::kCount)> similar_outcomes{};
  uint64_t similar_attempts = 0, similar_enlarged = 0, similar_waits = 0;
  uint64_t shadows = 0, shadow_failures = 0;
  std::array<SimilarTrials, static_cast<size_t>(EditClass::kCount)> shadows_by_class{};
  // Tiers: loads that were started, rows they brought, loads that brought less than they promised
  // (also in fallbacks), and blocks that stayed unwritten because writing had not paid.
  uint64_t loads = 0, loaded_tokens = 0, failed_loads = 0, unwritten_blocks = 0;
  uint64_t donors = 0;       // prompts that can lend rows now
  uint64_t donor_notes = 0;  // of them, those whose tail was recorded
  uint64_t note_pages = 0;   // that hold what was recorded: cached pages, and evicted as others
  uint64_t similar_match_ns = 0;  // of match_ns
  uint64_t match_ns = 0;          // wall time spent in Lookup, and in Begin checking the plan again
};

// What the blocks of one Namespace::tenant hold, in use and cached.
struct TenantUse {
  std::string tenant;
  uint64_t bytes = 0;
  uint64_t quota_bytes = 0;     // 0: none
  uint64_t evicted_blocks = 0;  // to keep to the quota; since the tenant last had none
};

}  // namespace kvlink
