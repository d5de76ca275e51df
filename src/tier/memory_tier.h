// The memory tier: blocks in this process's memory, within a byte budget; the oldest goes first. It
// keeps what waits to be written elsewhere as well (TierPut::owner), so that a block is copied
// once. RAM of the Python package's stores; for tests; and the example of a tier in one file.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

class MemoryTier : public BlockTier {
 public:
  explicit MemoryTier(uint64_t budget_bytes, std::string name = "memory")
      : name_(std::move(name)), budget_bytes_(budget_bytes) {}
  std::string_view name() const override { return name_; }
  std::vector<TierAnswer> Put(std::span<const TierPut> items, TimePoint deadline) override;
  std::vector<TierAnswer> Get(std::span<const BlockKey> keys, TimePoint deadline) override;
  std::vector<TierAnswer> Contains(std::span<const BlockKey> keys, TimePoint deadline) override;
  std::vector<TierAnswer> Remove(std::span<const BlockKey> keys, TimePoint deadline) override;
  std::optional<bool> ContainsNow(const BlockKey& key) const override;
  Status Ping(TimePoint) override { return {}; }
  Status Flush(TimePoint) override { return {}; }
  TierUsage Usage() const override;
  Status List(const std::function<bool(const TierEntry&)>& visit) const override;
  std::string LastError() const override { return {}; }

 private:
  struct Block {
    BlockKey key, parent;
    std::string_view bytes;
    std::shared_ptr<const void> owner;  // of the bytes
    uint32_t uses = 0;
  };
  // Gives the owner of its bytes, to be let go of without the lock: a block may be megabytes.
  std::shared_ptr<const void> Erase(const BlockKey& key) KVLINK_REQUIRES(mutex_);

  const std::string name_;
  const uint64_t budget_bytes_;
  mutable base::Mutex mutex_;
  std::list<Block> blocks_ KVLINK_GUARDED_BY(mutex_);  // the oldest first
  std::unordered_map<BlockKey, std::list<Block>::iterator> index_ KVLINK_GUARDED_BY(mutex_);
  uint64_t bytes_ KVLINK_GUARDED_BY(mutex_) = 0;
  uint64_t evictions_ KVLINK_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvlink::tier
