// BlockObserver: hears which full blocks become findable and which go, so that others (routers,
// other tools) can know what a cache holds, in RAM and in the tiers below.
//
// Called with the cache's lock held, in the order in which things happen: an observer returns at
// once, never waits, and never calls the cache. What was stored and not removed or cleared since is
// findable; partial blocks and blocks of similar reuse are never told of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvlink/view.h"

namespace kvlink {

// A block's key: a hash over its tokens, all before them and the namespace. Equal in every process
// that serves the same model in the same numeric path.
struct BlockHash {
  uint64_t lo = 0, hi = 0;
  bool operator==(const BlockHash&) const = default;
};

struct StoredBlock {
  BlockHash hash;
  std::optional<BlockHash> parent;      // nothing: the first of its prompt
  std::span<const TokenId> tokens;      // tokens_per_block; valid during the call only
  std::optional<BlockHash> name_space;  // nothing: no tenant and no salt
};

class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void Stored(const StoredBlock& block) = 0;
  virtual void Removed(const BlockHash& hash) = 0;
  virtual void Cleared() = 0;  // no block is left

  // `tier` ("cold", "remote") has the block as well, or has it no more; whether RAM has it is told
  // by the above alone. Told when it is noticed, a moment later than it happens; not told are
  // blocks of earlier runs that this process has not used. After Cleared, what tiers have is told
  // again.
  virtual void StoredInTier(const StoredBlock& /*block*/, std::string_view /*tier*/) {}
  virtual void RemovedFromTier(const BlockHash& /*hash*/, std::string_view /*tier*/) {}
};

}  // namespace kvlink
