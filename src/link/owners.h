// Owners: which tenant a block's owner stands for, and how many bytes its blocks may hold.
//
// The graph counts by number and knows no names. A tenant gets a number when it first needs one;
// numbers of tenants without blocks or quota go to others, so that the table does not grow with
// every tenant that ever was. Whoever holds a number only within one critical section is safe.
// Threads: const members may run at the same time; everything else needs the store alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache/block_graph.h"

namespace kvlink::link {

struct Owner {
  std::string tenant;
  uint64_t quota_bytes = 0;     // 0: none
  uint64_t evicted_blocks = 0;  // to keep to the quota
};

class Owners {
 public:
  Owners() : owners_(1) {}  // the first is nobody

  cache::OwnerId Find(const std::string& tenant) const {
    const auto found = ids_.find(tenant);
    return found == ids_.end() ? cache::kNobody : found->second;
  }
  cache::OwnerId IdOf(const std::string& tenant, const cache::BlockGraph& graph) {
    if (const cache::OwnerId known = Find(tenant); known != cache::kNobody) return known;
    if (ids_.size() >= sweep_at_) Sweep(graph);
    auto id = static_cast<cache::OwnerId>(owners_.size());
    if (free_ids_.empty()) {
      owners_.emplace_back();
    } else {
      id = free_ids_.back();
      free_ids_.pop_back();
    }
    owners_[id].tenant = tenant;
    ids_.emplace(tenant, id);
    return id;
  }

  Owner& operator[](cache::OwnerId id) { return owners_[id]; }
  const Owner& operator[](cache::OwnerId id) const { return owners_[id]; }
  const std::map<std::string, cache::OwnerId>& ids() const { return ids_; }
  size_t tracking_bytes() const {
    constexpr size_t kTreeNode = 4 * sizeof(void*);
    return owners_.capacity() * sizeof(Owner) + free_ids_.capacity() * sizeof(cache::OwnerId) +
           ids_.size() * (sizeof(*ids_.begin()) + kTreeNode);
  }

 private:
  void Sweep(const cache::BlockGraph& graph) {
    std::erase_if(ids_, [&](const auto& entry) {
      const cache::OwnerId id = entry.second;
      const cache::OwnerCounts counts = graph.CountsOf(id);
      if (owners_[id].quota_bytes > 0 || counts.pages + counts.fragments > 0) return false;
      owners_[id] = {};
      free_ids_.push_back(id);
      return true;
    });
    sweep_at_ = std::max(kFirstSweep, 2 * ids_.size());
  }

  static constexpr size_t kFirstSweep = 1024;
  std::vector<Owner> owners_;  // by OwnerId
  std::vector<cache::OwnerId> free_ids_;
  std::map<std::string, cache::OwnerId> ids_;
  size_t sweep_at_ = kFirstSweep;
};

}  // namespace kvlink::link
