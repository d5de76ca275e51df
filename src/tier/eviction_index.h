// EvictionIndex: what a tier holds, by key, and what to evict next.
//
// Worth is GreedyDual-Size-Frequency (Cherkasova 1998): worth = floor + uses * cost / bytes, set at
// every use, where `floor` is the worth of what was evicted last: so what nobody asks for ages, and
// what is dear and asked for stays longer.
// Only leaves are evicted, so that no block stays here that cannot be reached:
//
//   A <- B <- C, D     evict C or D, the less worth; then the other; then B; then A
//
// A block whose parent is not here (it was damaged, or never came) is unreachable until the parent
// comes back; as a leaf it goes first of all.
//
// Invariants
//   1. bytes() is the sum of the blocks' bytes; leaves_ holds exactly the blocks without children.
// Not thread-safe. Cost: O(log n) a call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/hash.h"

namespace kvlink::tier {

struct EvictionEntry {
  base::BlockKey parent;  // {0, 0}: none
  uint64_t bytes = 0;
  double cost_us = 0;
  double worth = 0;
  uint32_t uses = 0;
  bool operator==(const EvictionEntry&) const = default;
};

class EvictionIndex {
 public:
  const EvictionEntry* Find(const base::BlockKey& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second.entry;
  }
  // The entry of a new block, used once.
  EvictionEntry NewEntry(const base::BlockKey& parent, uint64_t bytes, double cost_us) const;
  // A new block, used once; replaces one of the same key.
  void Insert(const base::BlockKey& key, const base::BlockKey& parent, uint64_t bytes,
              double cost_us);
  // A block of an earlier run, with the worth it had.
  void Restore(const base::BlockKey& key, const EvictionEntry& entry);
  // After the last Restore: what comes now is worth as much as what is here.
  void EndRestore();
  void Touch(const base::BlockKey& key);  // a use; nothing when the block is not here
  void Erase(const base::BlockKey& key);  // its children, if any, become unreachable

  // What to evict next; empty when nothing is here.
  std::optional<base::BlockKey> Next() const;
  // Erases Next(), and raises the floor to its worth.
  void Evict(const base::BlockKey& key);

  uint64_t size() const { return entries_.size(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t num_unreachable() const { return num_unreachable_; }
  void ForEach(const std::function<void(const base::BlockKey&, const EvictionEntry&)>& visit) const;

 private:
  struct Node {
    EvictionEntry entry;
    uint64_t order = 0;  // of equals the one used longest ago goes first
    bool reachable = true;
  };
  using Rank = std::tuple<bool, double, uint64_t, base::BlockKey>;  // reachable, worth, order

  Rank RankOf(const base::BlockKey& key, const Node& node) const {
    return {node.reachable, node.entry.worth, node.order, key};
  }
  bool HasChildren(const base::BlockKey& key) const;
  void Place(const base::BlockKey& key, EvictionEntry entry);
  void SetReachableChildren(const base::BlockKey& parent, bool reachable);
  double WorthOf(const EvictionEntry& entry) const;

  std::unordered_map<base::BlockKey, Node> entries_;
  std::set<std::pair<base::BlockKey, base::BlockKey>> edges_;  // parent, child
  std::set<Rank> leaves_;
  uint64_t bytes_ = 0, num_unreachable_ = 0, order_ = 0;
  double floor_ = 0;
};

}  // namespace kvlink::tier
