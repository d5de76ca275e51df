// PostingTable: from a 32-bit key to donors that have it, at most kBucketSize of them, and to how
// many have it at all. Of more, the newest are kept, and a few of the oldest: an old donor that
// many use outlives newer ones that nobody does, and must still be found when those are gone.
//
//   slots (open addressing, linear probing)      nodes
//   [key | frequency | head] ------------------> {donor, next} -> {donor, next}     newest first
//
// Invariants
//   1. frequency(key) == number of Add(key, ...) without their Remove; a slot without is gone.
//   2. A bucket holds min(frequency, kBucketSize) donors or fewer: a full one pushes out its
//      (kNewest + 1)-th, and removing another does not bring that one back.
// Keys are hashes: two different things may have one. Whoever finds a donor here looks at the
// donor. Memory: 16 to 24 bytes a key and 8 a posting; slots are given back as keys go, nodes are
// kept for reuse until the table is empty. Cost: O(1). Threads: const members may run at the same
// time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvlink::match {

class PostingTable {
 public:
  static constexpr uint32_t kBucketSize = 16;
  static constexpr uint32_t kNewest = 12;

  struct Bucket {
    uint32_t frequency = 0;
    uint32_t size = 0;
    std::array<uint32_t, kBucketSize> donors;  // newest first; `size` of them are set
  };

  // Requires: the donor is not under this key. Donors are small integers.
  void Add(uint32_t key, uint32_t donor);
  // Requires: the donor was added under this key.
  void Remove(uint32_t key, uint32_t donor);
  Bucket Find(uint32_t key) const;
  // Asks for the key's memory, so that a later Find does not wait for it.
  void Prefetch(uint32_t key) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[HomeOf(key)]);
  }

  size_t num_keys() const { return num_keys_; }
  size_t num_nodes() const { return nodes_.size() - free_.size(); }
  size_t tracking_bytes() const {
    return slots_.capacity() * sizeof(Slot) + nodes_.capacity() * sizeof(Node) +
           free_.capacity() * sizeof(uint32_t);
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  struct Slot {
    uint32_t key = 0;
    uint32_t frequency = 0;  // 0: an empty slot
    uint32_t head = kNone;
  };
  struct Node {
    uint32_t donor;
    uint32_t next;
  };

  size_t HomeOf(uint32_t key) const { return (uint64_t{key} * slots_.size()) >> 32; }
  size_t SlotOf(uint32_t key) const;  // of the key, or the empty one where it would go
  void Resize(size_t num_slots);
  void EraseSlot(size_t slot);
  uint32_t TakeNode(uint32_t donor, uint32_t next);

  std::vector<Slot> slots_;  // at most three quarters are used
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;  // indices of unused nodes
  size_t num_keys_ = 0;
};

}  // namespace kvlink::match
