// Lookup: from what the index found to a plan, with the reason why there is not more.
#pragma once

#include "kvlink/cache.h"
#include "link/cache_state.h"
#include "match/prefix_index.h"

namespace kvlink::link {

// What is resident of this prompt; nothing when sharing is off for the server or the request.
match::PrefixMatch FindPrompt(const CacheState& state, const LookupRequest& request,
                              const match::Root& root) KVLINK_REQUIRES_SHARED(state.mutex);

// Everything but the time.
Plan PlanOf(const CacheState& state, const LookupRequest& request, const match::PrefixMatch& match)
    KVLINK_REQUIRES_SHARED(state.mutex);

// Adds what tiers have behind the resident rows, where there are tiers: the rows that a load would
// bring, and whether there are none because a tier failed, or has them for another model.
void AddTiers(const CacheState& state, const LookupRequest& request, const match::Root& root,
              const match::PrefixMatch& match, Plan* plan) KVLINK_REQUIRES_SHARED(state.mutex);

// Blocks behind the resident ones that were here and were evicted, one after another.
uint32_t NumEvicted(const CacheState& state, const LookupRequest& request,
                    const match::PrefixMatch& match) KVLINK_REQUIRES_SHARED(state.mutex);

// The first token that must run, when `ready` rows are there.
uint32_t ComputeFrom(const LookupRequest& request, uint32_t ready);

}  // namespace kvlink::link
