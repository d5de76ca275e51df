// BlockGraph: the DependencyTracker. Which block needs which, who uses it, and which one goes next.
//
//      (root)                     edges point at what a block needs:
//        ^                          child      -> parent   its rows attend to the parent's rows
//     block 0  <--- block 3         difference -> base     it stores only the rows that differ
//        ^            ^
//     block 1      block 4  <~~ difference 5                (5's parent is 3, as its base's is)
//
// A block is identity and page. Every edge pins what it points at, a user (a sequence) pins a block
// and its base, a pin holds a prompt's blocks for a time (pin_table.h). What nothing points at and
// nobody uses is a candidate for eviction, if it is kept (an index knows it); if it is not kept it
// is freed at once, and then what only it needed: release runs in topological order, and freeing a
// parent first is impossible.
//
// Invariants (Validate checks them)
//   1. A block's parent and base outlive it. A base is never itself a difference.
//   2. Who uses a block uses its parent: without users, nothing that depends on it has users. So
//      `evictable_pages` pages can be freed by evicting victims one after another.
//   3. A candidate has no users, children, differences or pin; Victim() is the first in order.
// Threads: const members may run at the same time; everything else needs the graph alone.
// Cost: O(log candidates) an operation; a block that has users or children costs O(1).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/eviction_order.h"
#include "cache/pin_table.h"
#include "kvlink/cache.h"
#include "kvlink/view.h"
#include "pool/page_pool.h"

namespace kvlink::cache {

using OwnerId = uint32_t;  // whose block it is, for quotas
inline constexpr OwnerId kNobody = 0;

// Rows [first_row, first_row + capacity) of a block that differ from its base; one map for all
// layers.
struct Difference {
  Difference(pool::FragmentRef fragment, uint32_t tokens_per_block, uint32_t first_row,
             uint32_t capacity);
  Difference(const Difference&) = delete;  // `view` points into it
  Difference& operator=(const Difference&) = delete;

  pool::FragmentRef cells;
  uint32_t first_row;
  std::array<int8_t, kMaxTokensPerBlock> slots;
  DifferenceView view;
};

struct Block {
  pool::PageRef page;                      // of the base, when this is a difference
  std::unique_ptr<Difference> difference;  // null: the page alone
  BlockId parent = kNoBlock;               // kNoBlock: the first of its chain
  BlockId base = kNoBlock;                 // of a difference
  uint32_t depth = 0;                      // blocks before it in its chain
  uint32_t rows = 0;                       // valid rows; those never change
  uint32_t children = 0, differences = 0;  // that point at it
  uint32_t users = 0;                      // sequences, and differences' users
  OwnerId owner = kNobody;
  uint32_t times_used = 0;     // requests that used it, the one that computed it included
  uint64_t last_use = 0;       // in ticks of the graph
  uint64_t appender = 0;       // the sequence that may write rows from `rows` on; 0: none
  uint64_t serial = 0;         // of this block alone, whoever has the number later
  base::TimePoint made, used;  // when it was added, and last used or given back
  uint32_t pins = 0;           // that hold it: they end in it, or in what needs it
  bool kept = false;           // an index knows it: it stays without users
  bool present = false;
  bool tainted = false;  // its rows were computed on those of a similar prompt
};

struct GraphCounts {
  uint64_t blocks = 0;
  uint64_t in_use_pages = 0, cached_pages = 0;          // of blocks that are no differences
  uint64_t in_use_fragments = 0, cached_fragments = 0;  // of differences
  uint64_t evictable_pages = 0;                         // without users or pin
  uint64_t pinned_pages = 0, pinned_fragments = 0;
  uint64_t reused_cached_pages = 0;  // without users, used twice or more
  uint64_t shared_pages = 0;         // with two users or more
  bool operator==(const GraphCounts&) const = default;
};

// What one owner's blocks hold.
struct OwnerCounts {
  uint64_t pages = 0, fragments = 0;
  uint64_t evictable_pages = 0, evictable_fragments = 0;  // without users or pin
  uint64_t reused_cached_pages = 0;
  bool operator==(const OwnerCounts&) const = default;
};

class BlockGraph {
 public:
  // `total_pages` of the pool: eviction order measures ages against it.
  BlockGraph(uint32_t tokens_per_block, uint64_t total_pages);

  // A block with one user, used once, whose rows `appender` will write.
  BlockId Add(pool::PageRef page, BlockId parent, uint64_t appender, OwnerId owner = kNobody);
  // Likewise, over `base`'s page, for `capacity` rows from `first_row` on (fewer at the block's
  // end). Its owner is the base's.
  BlockId AddDifference(pool::FragmentRef cells, BlockId base, BlockId parent, uint64_t appender,
                        uint32_t first_row, uint32_t capacity);

  void Acquire(BlockId id);   // one more user
  void Release(BlockId id);   // one user less; frees what is not kept any more. Leaf first.
  void CountUse(BlockId id);  // a request found this block
  void SetRows(BlockId id, uint32_t rows);
  void SetAppender(BlockId id, uint64_t appender);
  void SetTainted(BlockId id) { blocks_[id].tainted = true; }
  void Keep(BlockId id);    // an index knows it
  void Forget(BlockId id);  // no index knows it: freed when nothing needs it
  // Requires: the same tokens stand before `parent`'s end; no pin holds `id`.
  void Reparent(BlockId id, BlockId parent);

  // The kept block that goes next; nothing when all are used or pinned. Forget() evicts it.
  std::optional<BlockId> Victim() const;

  // An owner that may hold about `pages` pages evicts for itself: VictimOf is the one of its kept
  // blocks that goes next. 0: it need not. O(blocks).
  void Limit(OwnerId owner, uint64_t pages);
  std::optional<BlockId> VictimOf(OwnerId owner) const;  // Requires: it is limited
  OwnerCounts CountsOf(OwnerId owner) const;

  // Holds a prompt's first `pin.tokens` tokens: the block that they end in, its base and all before
  // it. When that block is forgotten all the same, the pin ends in its parent. Requires: `key` has
  // no pin, the block is kept. O(depth), as Unpin.
  void Pin(const PinKey& key, const PinnedPrompt& pin);
  // Pages and fragments of this block and its base that no pin holds.
  std::pair<uint64_t, uint64_t> CostOfPin(BlockId id) const;
  // Gives the tokens of this prompt that no pin holds any more; nothing: it had none.
  std::optional<uint32_t> Unpin(const PinKey& key);
  void ExpirePins(base::TimePoint now);
  void UnpinAll();
  size_t num_pins() const { return pins_.size(); }
  // By BlockId: how long the last of its pins holds a block; TimePoint::min() without one. Empty:
  // there are no pins. O(blocks).
  std::vector<base::TimePoint> PinnedUntil() const;

  // The time that blocks are used at from here on.
  void SetNow(base::TimePoint now) { now_ = now; }

  const Block& operator[](BlockId id) const { return blocks_[id]; }
  BlockId end_id() const { return static_cast<BlockId>(blocks_.size()); }  // above all ids
  BlockView View(BlockId id) const;
  const GraphCounts& counts() const { return counts_; }
  size_t tracking_bytes() const;
  void Validate() const;  // O(blocks): for tests

 private:
  template <typename Change>
  void Update(BlockId id, Change change);
  void Count(const Block& block, uint64_t sign);
  bool IsCandidate(const Block& block) const;
  template <typename Visit>
  void ForOrders(BlockId id, Visit visit);
  BlockId NewBlock(BlockId parent, uint64_t appender, OwnerId owner);
  void FreeIfUnneeded(BlockId id);
  template <typename Visit>
  void ForPinClosure(BlockId id, Visit visit) const;
  void ChangePins(BlockId end, uint32_t by);
  void PassPinsOn(BlockId id);

  const uint32_t tokens_per_block_;
  EvictionOrder order_;
  std::deque<Block> blocks_;  // by BlockId; addresses are stable
  std::vector<BlockId> free_ids_;
  PinTable pins_;
  GraphCounts counts_;
  struct Owned {
    OwnerCounts counts;
    std::unique_ptr<EvictionOrder> order;  // of its candidates; null: not limited
  };
  std::vector<Owned> owned_;  // by OwnerId
  uint64_t tick_ = 0;
  base::TimePoint now_;
};

}  // namespace kvlink::cache
