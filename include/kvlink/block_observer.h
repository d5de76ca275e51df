// BlockObserver: hears which full blocks become findable and which go, so that others (routers,
// other tools) can know what a cache holds.
//
// Called with the cache's lock held, in the order in which things happen: an observer returns at
// once, never waits, and never calls the cache. What was stored and not removed or cleared since is
// findable; partial blocks and blocks of similar reuse are never told of.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

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
};

}  // namespace kvlink
