// ColdIndex: what the cold tier holds, in memory: where each block lies, what to evict next
// (eviction_index.h), and which uses the database has not been told of.
//
// Invariant: exactly the blocks of the eviction index have a place.
// Threads: any; locks itself. Cost: a hash probe, or O(log n) where the order changes; InFile looks
// at all.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tier/blob_files.h"
#include "tier/block_tier.h"
#include "tier/eviction_index.h"

namespace kvlink::tier {

// What the database keeps of a block.
struct ColdEntry {
  EvictionEntry entry;
  Place place;  // of entry.bytes bytes
};
using PlacedBlock = std::pair<BlockKey, Place>;

class ColdIndex {
 public:
  // A block beside its bytes: its entry, and copies.
  static constexpr uint64_t kOverheadBytes = 256;

  // A block of an earlier run; EndRestore after the last.
  void Restore(const BlockKey& key, const ColdEntry& found);
  void EndRestore();

  std::optional<Place> Find(const BlockKey& key) const;
  void Use(const BlockKey& key);

  // What Insert will hold of a new block.
  ColdEntry EntryOf(const TierPut& item, const Place& place) const;
  // Gives the place of the block that it replaces.
  std::optional<Place> Insert(const TierPut& item, const Place& place);
  std::optional<Place> Erase(const BlockKey& key);
  // The least worth until live_bytes() is at most `live_bytes`.
  std::vector<PlacedBlock> EvictTo(uint64_t live_bytes);

  std::vector<PlacedBlock> InFile(uint32_t file) const;  // in the order of their bytes
  // Requires: in the index.
  ColdEntry At(const BlockKey& key) const;
  void Move(const BlockKey& key, const Place& place);

  // Blocks that were used since the last time.
  std::vector<std::pair<BlockKey, ColdEntry>> TakeUsed();

  uint64_t live_bytes() const;
  void AddTo(TierUsage* usage) const;
  std::vector<TierEntry> List() const;

 private:
  uint64_t LiveBytes() const KVLINK_REQUIRES(mutex_) {
    return index_.bytes() + index_.size() * kOverheadBytes;
  }
  std::optional<Place> Forget(const BlockKey& key) KVLINK_REQUIRES(mutex_);

  mutable base::Mutex mutex_;
  EvictionIndex index_ KVLINK_GUARDED_BY(mutex_);
  std::unordered_map<BlockKey, Place> places_ KVLINK_GUARDED_BY(mutex_);
  std::unordered_set<BlockKey> used_ KVLINK_GUARDED_BY(mutex_);
  uint64_t evictions_ KVLINK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvlink::tier
