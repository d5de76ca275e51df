// ListBlocks and ShowBlock: what is resident, for people and tools (kvlink/block_list.h).
//
// The lock is held, shared, only to copy a few words of each block: about 0.1 us a block, so that a
// cache of 10,000 blocks keeps the engine waiting for a millisecond. Whose each block is, what
// tiers have and what the filter lets through is found out afterwards.
#pragma once

#include <cstdint>

#include "kvlink/block_list.h"
#include "kvlink/status.h"
#include "link/cache_state.h"

namespace kvlink::link {

BlockList ListBlocks(const CacheState& state, const BlockFilter& filter);
Result<ShownBlocks> ShowBlock(const CacheState& state, uint64_t id, uint32_t last,
                              const BlockFilter& filter);

}  // namespace kvlink::link
