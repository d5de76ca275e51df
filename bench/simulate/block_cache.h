// BlockCache: which blocks a cache of so many blocks holds, under an eviction policy.
//
//   kvlink   the product's own cache::BlockGraph and cache::EvictionOrder, driven as src/link does
//   lru      least recently used; of one request's blocks the deeper goes first
//   belady   the best that knowing the future allows (below)
//
// A block hits only if all before it hit, so what a cache holds is closed under prefixes, and an
// online policy holds the whole of a request while it is served.
//
// Belady's rule is to evict what is used again last (Belady 1966; optimal by Mattson et al. 1970).
// Here every request that uses a block uses all before it, so a parent's next use is never after
// its child's: with ties broken against the deeper block, the rule never evicts a parent first, and
// closure costs nothing. The variant may also keep nothing of a new block (bypass). Read block by
// block, from the root on, whatever any policy does in this model is also possible there, and there
// the rule is optimal as all blocks count the same. So no policy has more hits at the same size.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvlink/status.h"
#include "trace.h"

namespace kvlink::simulate {

enum class Policy : uint8_t { kKvlink, kLru, kBelady };
const char* PolicyName(Policy policy);
inline constexpr Policy kPolicies[] = {Policy::kKvlink, Policy::kLru, Policy::kBelady};

class BlockCache {
 public:
  virtual ~BlockCache() = default;
  virtual bool Contains(NodeId block) const = 0;
  // Request number `now` (never decreasing) has used `path`, from the root on. Returns the blocks
  // that were written. A path longer than the cache is held as far as it fits.
  virtual uint32_t Use(std::span<const NodeId> path, uint32_t now) = 0;
  virtual uint64_t num_blocks() const = 0;
};

// Blocks of the path that are here, from the root on.
uint32_t PrefixHits(const BlockCache& cache, std::span<const NodeId> path);

// `capacity` in blocks, above 0. Belady's cache must see every request of the trace; the trace
// outlives it.
std::unique_ptr<BlockCache> MakeCache(Policy policy, const Trace& trace, uint64_t capacity);

}  // namespace kvlink::simulate
