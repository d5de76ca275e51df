// InFlightTable: which blocks are being computed, and by whom, so that equal requests wait instead
// of computing again.
//
// Several leaders may compute the same block (one that overtook a late leader, a request that may
// not wait): they are kept in the order of their announcements, and the first one alive is *the*
// leader. A key that collides makes somebody wait for nothing and look again; it never serves a
// block. Threads: const members may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "match/block_key.h"

namespace kvlink::match {

class InFlightTable {
 public:
  // `leader` will commit the block of this key. Announcing again changes nothing.
  void Announce(const BlockKey& key, uint64_t leader);
  // It did, or never will. Nothing happens when it was not announced.
  void Retire(const BlockKey& key, uint64_t leader);
  void RetireAll(uint64_t leader);

  std::optional<uint64_t> LeaderOf(const BlockKey& key) const;
  bool IsComputing(const BlockKey& key, uint64_t leader) const;
  size_t num_keys() const { return leaders_.size(); }
  size_t tracking_bytes() const;

 private:
  std::unordered_map<BlockKey, std::vector<uint64_t>> leaders_;         // never an empty vector
  std::unordered_map<uint64_t, std::vector<BlockKey>> keys_of_leader_;  // likewise
};

}  // namespace kvlink::match
