#include "tier/memory_tier.h"

namespace kvlink::tier {

std::vector<TierAnswer> MemoryTier::Put(std::span<const TierPut> items, TimePoint) {
  const base::MutexLock lock(mutex_);
  std::vector<TierAnswer> answers;
  for (const TierPut& item : items) {
    if (item.bytes.size() > budget_bytes_) {
      answers.push_back(TierAnswer::Error(ErrorReason::kFull));
      continue;
    }
    Erase(item.key);
    while (bytes_ + item.bytes.size() > budget_bytes_) {
      Erase(blocks_.front().key);
      ++evictions_;
    }
    blocks_.push_back({item.key, item.parent, std::string(item.bytes), 1});
    index_[item.key] = std::prev(blocks_.end());
    bytes_ += item.bytes.size();
    answers.push_back(TierAnswer::Ok());
  }
  return answers;
}

std::vector<TierAnswer> MemoryTier::Get(std::span<const BlockKey> keys, TimePoint) {
  const base::MutexLock lock(mutex_);
  std::vector<TierAnswer> answers;
  for (const BlockKey& key : keys) {
    const auto found = index_.find(key);
    if (found == index_.end()) {
      answers.push_back(TierAnswer::Miss());
      continue;
    }
    ++found->second->uses;
    answers.push_back(TierAnswer::Ok(found->second->bytes));
  }
  return answers;
}

std::vector<TierAnswer> MemoryTier::Contains(std::span<const BlockKey> keys, TimePoint) {
  const base::MutexLock lock(mutex_);
  std::vector<TierAnswer> answers;
  for (const BlockKey& key : keys) {
    answers.push_back(index_.contains(key) ? TierAnswer::Ok() : TierAnswer::Miss());
  }
  return answers;
}

std::vector<TierAnswer> MemoryTier::Remove(std::span<const BlockKey> keys, TimePoint) {
  const base::MutexLock lock(mutex_);
  std::vector<TierAnswer> answers;
  for (const BlockKey& key : keys) {
    answers.push_back(index_.contains(key) ? TierAnswer::Ok() : TierAnswer::Miss());
    Erase(key);
  }
  return answers;
}

std::optional<bool> MemoryTier::ContainsNow(const BlockKey& key) const {
  const base::MutexLock lock(mutex_);
  return index_.contains(key);
}

TierUsage MemoryTier::Usage() const {
  const base::MutexLock lock(mutex_);
  TierUsage usage;
  usage.blocks = blocks_.size();
  usage.bytes = usage.device_bytes = bytes_;
  usage.budget_bytes = budget_bytes_;
  usage.evictions = evictions_;
  return usage;
}

Status MemoryTier::List(const std::function<bool(const TierEntry&)>& visit) const {
  std::vector<TierEntry> entries;  // visit runs without the lock: it may call the tier
  {
    const base::MutexLock lock(mutex_);
    for (const Block& block : blocks_) {
      entries.push_back({block.key, block.parent, block.bytes.size(), block.uses});
    }
  }
  for (const TierEntry& entry : entries) {
    if (!visit(entry)) break;
  }
  return {};
}

void MemoryTier::Erase(const BlockKey& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  bytes_ -= found->second->bytes.size();
  blocks_.erase(found->second);
  index_.erase(found);
}

}  // namespace kvlink::tier
