#include "tier/eviction_index.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvlink::tier {

using base::BlockKey;

EvictionEntry EvictionIndex::NewEntry(const BlockKey& parent, uint64_t bytes,
                                      double cost_us) const {
  EvictionEntry entry{parent, bytes, cost_us, 0, 1};
  entry.worth = WorthOf(entry);
  return entry;
}

void EvictionIndex::Insert(const BlockKey& key, const BlockKey& parent, uint64_t bytes,
                           double cost_us) {
  Erase(key);
  Place(key, NewEntry(parent, bytes, cost_us));
}

// Bytes from a device may be anything, and what is no number has no place in an order.
void EvictionIndex::Restore(const BlockKey& key, const EvictionEntry& entry) {
  Erase(key);
  EvictionEntry sane = entry;
  for (double* value : {&sane.cost_us, &sane.worth}) {
    if (!std::isfinite(*value) || *value < 0) *value = 0;
  }
  Place(key, sane);
}

void EvictionIndex::EndRestore() {
  if (const std::optional<BlockKey> next = Next()) floor_ = Find(*next)->worth;
}

void EvictionIndex::Place(const BlockKey& key, EvictionEntry entry) {
  const bool has_parent = entry.parent != BlockKey{};
  Node node{std::move(entry), ++order_, true};
  if (has_parent) {
    const auto parent = entries_.find(node.entry.parent);
    node.reachable = parent != entries_.end();
    if (node.reachable) leaves_.erase(RankOf(parent->first, parent->second));
    edges_.emplace(node.entry.parent, key);
  }
  num_unreachable_ += node.reachable ? 0 : 1;
  bytes_ += node.entry.bytes;
  entries_.emplace(key, node);
  SetReachableChildren(key, true);
  if (!HasChildren(key)) leaves_.insert(RankOf(key, node));
}

void EvictionIndex::Touch(const BlockKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  Node& node = found->second;
  const bool leaf = leaves_.erase(RankOf(key, node)) > 0;
  ++node.entry.uses;
  node.entry.worth = WorthOf(node.entry);
  node.order = ++order_;
  if (leaf) leaves_.insert(RankOf(key, node));
}

void EvictionIndex::Erase(const BlockKey& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  const Node node = found->second;
  leaves_.erase(RankOf(key, node));
  entries_.erase(found);
  bytes_ -= node.entry.bytes;
  num_unreachable_ -= node.reachable ? 0 : 1;
  SetReachableChildren(key, false);
  if (node.entry.parent == BlockKey{}) return;
  edges_.erase({node.entry.parent, key});
  const auto parent = entries_.find(node.entry.parent);
  if (parent != entries_.end() && !HasChildren(parent->first)) {
    leaves_.insert(RankOf(parent->first, parent->second));
  }
}

std::optional<BlockKey> EvictionIndex::Next() const {
  if (leaves_.empty()) {
    // Only a cycle of parents has no leaf, which no chain of digests makes; bytes from a device
    // may.
    if (entries_.empty()) return std::nullopt;
    return entries_.begin()->first;
  }
  return std::get<BlockKey>(*leaves_.begin());
}

void EvictionIndex::Evict(const BlockKey& key) {
  const EvictionEntry* entry = Find(key);
  KVLINK_CHECK(entry != nullptr);
  floor_ = std::max(floor_, entry->worth);
  Erase(key);
}

void EvictionIndex::ForEach(
    const std::function<void(const BlockKey&, const EvictionEntry&)>& visit) const {
  for (const auto& [key, node] : entries_) visit(key, node.entry);
}

bool EvictionIndex::HasChildren(const BlockKey& key) const {
  const auto edge = edges_.lower_bound({key, BlockKey{}});
  return edge != edges_.end() && edge->first == key;
}

void EvictionIndex::SetReachableChildren(const BlockKey& parent, bool reachable) {
  for (auto edge = edges_.lower_bound({parent, BlockKey{}});
       edge != edges_.end() && edge->first == parent; ++edge) {
    const auto child = entries_.find(edge->second);
    if (child == entries_.end() || child->second.reachable == reachable) continue;
    const bool leaf = leaves_.erase(RankOf(child->first, child->second)) > 0;
    child->second.reachable = reachable;
    num_unreachable_ += reachable ? -1 : 1;
    if (leaf) leaves_.insert(RankOf(child->first, child->second));
  }
}

double EvictionIndex::WorthOf(const EvictionEntry& entry) const {
  const double bytes = static_cast<double>(std::max<uint64_t>(entry.bytes, 1));
  return floor_ + entry.uses * entry.cost_us / bytes;
}

}  // namespace kvlink::tier
