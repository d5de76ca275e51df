// EvictedKeys: a bounded memory of the keys that were evicted last, to tell "evicted" from "never
// seen".
//
// Sets of four, newest first; a fifth key in a set pushes the oldest out. Only 64 bits of a key are
// kept and compared: the answer labels a miss and never serves a block. Not thread-safe for Add;
// const members may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "match/block_key.h"

namespace kvlink::match {

class EvictedKeys {
 public:
  // Remembers up to `capacity` keys, rounded up to a power of two of at least four; 8 bytes each.
  explicit EvictedKeys(size_t capacity);
  void Add(const BlockKey& key);
  bool Contains(const BlockKey& key) const;
  void Clear();
  size_t tracking_bytes() const { return slots_.capacity() * sizeof(uint64_t); }

 private:
  size_t SetOf(uint64_t tag) const;
  std::vector<uint64_t> slots_;  // 0: empty
};

}  // namespace kvlink::match
