#include "tier/cold_index.h"

#include <algorithm>

#include "base/check.h"

namespace kvlink::tier {

void ColdIndex::Restore(const BlockKey& key, const ColdEntry& found) {
  const base::MutexLock lock(mutex_);
  index_.Restore(key, found.entry);
  places_[key] = found.place;
}

void ColdIndex::EndRestore() {
  const base::MutexLock lock(mutex_);
  index_.EndRestore();
}

std::optional<Place> ColdIndex::Find(const BlockKey& key) const {
  const base::MutexLock lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return std::nullopt;
  return found->second;
}

void ColdIndex::Use(const BlockKey& key) {
  const base::MutexLock lock(mutex_);
  if (!places_.contains(key)) return;  // evicted in between
  index_.Touch(key);
  used_.insert(key);
}

ColdEntry ColdIndex::EntryOf(const TierPut& item, const Place& place) const {
  const base::MutexLock lock(mutex_);
  return {index_.NewEntry(item.parent, item.bytes.size(), item.cost_us), place};
}

std::optional<Place> ColdIndex::Insert(const TierPut& item, const Place& place) {
  const base::MutexLock lock(mutex_);
  const std::optional<Place> replaced = Forget(item.key);
  places_[item.key] = place;
  index_.Insert(item.key, item.parent, item.bytes.size(), item.cost_us);
  return replaced;
}

std::optional<Place> ColdIndex::Erase(const BlockKey& key) {
  const base::MutexLock lock(mutex_);
  index_.Erase(key);
  return Forget(key);
}

std::optional<Place> ColdIndex::Forget(const BlockKey& key) {
  used_.erase(key);
  const auto found = places_.find(key);
  if (found == places_.end()) return std::nullopt;
  const Place place = found->second;
  places_.erase(found);
  return place;
}

std::vector<PlacedBlock> ColdIndex::EvictTo(uint64_t live_bytes) {
  const base::MutexLock lock(mutex_);
  std::vector<PlacedBlock> evicted;
  while (LiveBytes() > live_bytes) {
    const BlockKey key = *index_.Next();
    index_.Evict(key);
    const std::optional<Place> place = Forget(key);
    KVLINK_CHECK(place.has_value()) << "a block without a place";
    evicted.emplace_back(key, *place);
    ++evictions_;
  }
  return evicted;
}

std::vector<PlacedBlock> ColdIndex::InFile(uint32_t file) const {
  std::vector<PlacedBlock> blocks;
  {
    const base::MutexLock lock(mutex_);
    for (const auto& [key, place] : places_) {
      if (place.file == file) blocks.emplace_back(key, place);
    }
  }
  std::ranges::sort(blocks, {}, [](const PlacedBlock& block) { return block.second.offset; });
  return blocks;
}

ColdEntry ColdIndex::At(const BlockKey& key) const {
  const base::MutexLock lock(mutex_);
  const EvictionEntry* entry = index_.Find(key);
  KVLINK_CHECK(entry != nullptr) << "the block is not here";
  return {*entry, places_.at(key)};
}

void ColdIndex::Move(const BlockKey& key, const Place& place) {
  const base::MutexLock lock(mutex_);
  places_.at(key) = place;
}

std::vector<std::pair<BlockKey, ColdEntry>> ColdIndex::TakeUsed() {
  const base::MutexLock lock(mutex_);
  std::vector<std::pair<BlockKey, ColdEntry>> used;
  for (const BlockKey& key : used_) {
    used.emplace_back(key, ColdEntry{*index_.Find(key), places_.at(key)});
  }
  used_.clear();
  return used;
}

uint64_t ColdIndex::live_bytes() const {
  const base::MutexLock lock(mutex_);
  return LiveBytes();
}

void ColdIndex::AddTo(TierUsage* usage) const {
  const base::MutexLock lock(mutex_);
  usage->blocks = index_.size();
  usage->bytes = index_.bytes();
  usage->unreachable = index_.num_unreachable();
  usage->evictions = evictions_;
}

std::vector<TierEntry> ColdIndex::List() const {
  std::vector<TierEntry> entries;
  const base::MutexLock lock(mutex_);
  index_.ForEach([&entries](const BlockKey& key, const EvictionEntry& entry) {
    entries.push_back({key, entry.parent, entry.bytes, entry.uses});
  });
  return entries;
}

}  // namespace kvlink::tier
