// The part of BlockStore that keeps tenants to their quotas, and the store below its budget when
// the machine is short of memory.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "link/block_store.h"

namespace kvlink::link {

uint64_t BlockStore::BytesOf(cache::OwnerId owner) const {
  const cache::OwnerCounts counts = graph_.CountsOf(owner);
  return BytesOf(counts.pages, counts.fragments);
}

// Evicts the owner's own blocks until `more_bytes` fit into its quota beside them; changes nothing
// when they never will.
Status BlockStore::KeepToQuota(cache::OwnerId owner, uint64_t more_bytes) {
  const uint64_t quota = owners_[owner].quota_bytes;
  if (quota == 0 || more_bytes == 0) return Status::Ok();
  const cache::OwnerCounts counts = graph_.CountsOf(owner);
  const uint64_t held =
      BytesOf(owner) - BytesOf(counts.evictable_pages, counts.evictable_fragments);
  const auto exhausted = [&] {
    return Status(StatusCode::kQuotaExhausted, "the blocks of \"" + owners_[owner].tenant +
                                                   "\" may hold " + std::to_string(quota) +
                                                   " bytes: " + std::to_string(held) +
                                                   " are in use or pinned, and " +
                                                   std::to_string(more_bytes) + " more are needed");
  };
  if (held + more_bytes > quota) return exhausted();
  while (BytesOf(owner) + more_bytes > quota) {
    const std::optional<BlockId> victim = graph_.VictimOf(owner);
    if (!victim) return exhausted();
    EvictToTiers(*victim);
    owners_[owner].evicted_blocks += 1;
  }
  return Status::Ok();
}

void BlockStore::SetQuota(const std::string& tenant, uint64_t bytes) {
  if (bytes == 0 && owners_.Find(tenant) == cache::kNobody) return;
  const cache::OwnerId owner = OwnerOf(tenant);
  owners_[owner].quota_bytes = bytes;
  graph_.Limit(owner, bytes == 0 ? 0 : std::max<uint64_t>(bytes / shape_.page_bytes(), 1));
  while (bytes > 0 && BytesOf(owner) > bytes) {
    const std::optional<BlockId> victim = graph_.VictimOf(owner);
    if (!victim) return;
    EvictToTiers(*victim);
    owners_[owner].evicted_blocks += 1;
  }
}

std::vector<TenantUse> BlockStore::Tenants() const {
  std::vector<TenantUse> tenants;
  for (const auto& [tenant, id] : owners_.ids()) {
    const Owner& owner = owners_[id];
    const uint64_t bytes = BytesOf(id);
    if (bytes == 0 && owner.quota_bytes == 0) continue;
    tenants.push_back({tenant, bytes, owner.quota_bytes, owner.evicted_blocks});
  }
  return tenants;
}

uint64_t BlockStore::Withhold(uint64_t bytes) {
  withheld_pages_ = std::min(bytes / shape_.page_bytes(), total_pages_);
  while (pool_->Counts().free < withheld_pages_) {
    const std::optional<BlockId> victim = graph_.Victim();
    if (!victim) break;
    EvictToTiers(*victim);
  }
  pool_->GiveToSystem(withheld_pages_);
  return std::min(pool_->Counts().free, withheld_pages_) * shape_.page_bytes();
}

}  // namespace kvlink::link
