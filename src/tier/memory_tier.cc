#include "tier/memory_tier.h"

namespace kvlink::tier {

std::vector<TierAnswer> MemoryTier::Put(std::span<const TierPut> items, TimePoint) {
  std::vector<std::shared_ptr<const void>> owners;  // of what is copied, and of what goes
  std::vector<std::string_view> bytes;
  for (const TierPut& item : items) {
    if (item.owner != nullptr || item.bytes.size() > budget_bytes_) {
      owners.push_back(item.owner);
      bytes.push_back(item.bytes);
    } else {
      const auto copy = std::make_shared<const std::string>(item.bytes);
      owners.push_back(copy);
      bytes.push_back(*copy);
    }
  }
  std::vector<TierAnswer> answers;
  const base::MutexLock lock(mutex_);
  for (size_t i = 0; i < items.size(); ++i) {
    if (bytes[i].size() > budget_bytes_) {
      answers.push_back(TierAnswer::Error(ErrorReason::kFull));
      continue;
    }
    owners.push_back(Erase(items[i].key));
    while (bytes_ + bytes[i].size() > budget_bytes_) {
      owners.push_back(Erase(blocks_.front().key));
      ++evictions_;
    }
    blocks_.push_back({items[i].key, items[i].parent, bytes[i], owners[i], 1});
    index_[items[i].key] = std::prev(blocks_.end());
    bytes_ += bytes[i].size();
    answers.push_back(TierAnswer::Ok());
  }
  return answers;
}

std::vector<TierAnswer> MemoryTier::Get(std::span<const BlockKey> keys, TimePoint) {
  std::vector<Block> found;  // copied without the lock
  {
    const base::MutexLock lock(mutex_);
    for (const BlockKey& key : keys) {
      const auto at = index_.find(key);
      found.push_back(at == index_.end() ? Block{} : *at->second);
      if (at != index_.end()) ++at->second->uses;
    }
  }
  std::vector<TierAnswer> answers;
  for (const Block& block : found) {
    answers.push_back(block.owner == nullptr ? TierAnswer::Miss()
                                             : TierAnswer::Ok(std::string(block.bytes)));
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
  std::vector<std::shared_ptr<const void>> owners;
  std::vector<TierAnswer> answers;
  const base::MutexLock lock(mutex_);
  for (const BlockKey& key : keys) {
    answers.push_back(index_.contains(key) ? TierAnswer::Ok() : TierAnswer::Miss());
    owners.push_back(Erase(key));
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

std::shared_ptr<const void> MemoryTier::Erase(const BlockKey& key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  std::shared_ptr<const void> owner = std::move(found->second->owner);
  bytes_ -= found->second->bytes.size();
  blocks_.erase(found->second);
  index_.erase(found);
  return owner;
}

}  // namespace kvlink::tier
