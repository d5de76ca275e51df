// BlockStore: the blocks that are resident, which three rooms know three things about: `pool` where
// their rows lie, `cache` what needs and uses them, `match` which tokens they hold. It makes room
// by evicting, and keeps the three, and the donors whose rows they are, in step.
//
// Invariants
//   1. A block is in the index if and only if the graph keeps it; its tokens are its valid rows'.
//      Pages of donors' notes are kept, too, and in no index.
//   2. Page counts agree: the graph's pages + the pool's slabs + free pages == total.
// Threads: const members may run at the same time; everything else needs the store alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/block_graph.h"
#include "cache/copy_on_write.h"
#include "kvlink/cache.h"
#include "kvlink/options.h"
#include "link/counters.h"
#include "link/donor_notes.h"
#include "link/donors.h"
#include "link/observed_blocks.h"
#include "link/owners.h"
#include "match/block_key.h"
#include "match/evicted_keys.h"
#include "match/prefix_index.h"
#include "pool/page_pool.h"

namespace kvlink::link {

class LowerTiers;

// Rows to copy once the lock is dropped. Only the engine's thread writes, evicts or frees pages,
// and a new block is findable only after its first commit, so nobody sees the copy half done.
struct PendingCopy {
  BlockView from, to;
  uint32_t first_row = 0, num_rows = 0;
};

class BlockStore {
 public:
  // `options` are valid, the others outlive the store. `donors` null: no prompt is lent. `tiers`
  // null: there are none.
  static Result<std::unique_ptr<BlockStore>> Create(const CacheOptions& options, Counters* counters,
                                                    Donors* donors, LowerTiers* tiers = nullptr);

  // The owner of the tenant's blocks; of use until the lock is dropped.
  cache::OwnerId OwnerOf(const std::string& tenant) { return owners_.IdOf(tenant, graph_); }
  // Empty: nobody's.
  const std::string& TenantOf(BlockId id) const { return owners_[graph_[id].owner].tenant; }
  // Evicts until `pages` whole pages and `fragments` fragments are free, of the owner's own blocks
  // while these would hold more than its quota. kResourceExhausted and kQuotaExhausted when what is
  // in use or pinned leaves too little; then nothing a caller can see has changed.
  Status MakeRoom(cache::OwnerId owner, uint64_t pages, uint64_t fragments, base::TimePoint now);

  // These cannot fail after MakeRoom. The new block has one user, `appender`.
  BlockId AddPage(BlockId parent, uint64_t appender, cache::OwnerId owner);
  // The block into which `appender` writes after the shared rows that `cow` decided on. Its owner
  // is the source's.
  BlockId AddCopyOnWrite(const cache::CopyOnWrite& cow, BlockId source, uint64_t appender,
                         std::optional<PendingCopy>* copy);

  // Makes the rows that were just committed findable: `tokens` are all of the block's, the last
  // `num_new` are new. Returns the block, or the one that already stands for these tokens; then the
  // block is in no index any more, and the caller goes over to that one. `may_leave_ram`: tiers may
  // have it once it is full.
  BlockId Publish(BlockId id, const match::Root& root, std::span<const TokenId> tokens,
                  uint32_t num_new, bool may_leave_ram);

  // What was seen of the last rows of the donor that `donor` names (block_store_notes.cc); false:
  // there is no room. A note goes with its donor at the latest.
  bool KeepNote(BlockId donor, const DonorNote& note, base::TimePoint now);
  void DropNote(BlockId donor);
  void CountNoteUse(BlockId donor);
  std::optional<DonorNote> NoteOf(BlockId donor) const;
  size_t num_notes() const { return notes_.num_notes(); }
  bool IsNotePage(BlockId id) const { return notes_.Owns(id); }

  // Evicts and forgets everything that no sequence uses. True: nothing is left, and the observer
  // was told so.
  bool Clear();
  // As Cache promises (block_store_limits.cc).
  void SetQuota(const std::string& tenant, uint64_t bytes);
  std::vector<TenantUse> Tenants() const;
  uint64_t Withhold(uint64_t bytes);
  void NotePeak();

  cache::BlockGraph& graph() { return graph_; }
  const cache::BlockGraph& graph() const { return graph_; }
  const match::PrefixIndex& index() const { return index_; }
  bool WasEvicted(const base::BlockKey& key) const { return evicted_ && evicted_->Contains(key); }
  const KvShape& shape() const { return shape_; }
  uint32_t difference_capacity() const { return difference_capacity_; }
  uint64_t pinned_bytes() const;
  uint64_t BytesOf(uint64_t pages, uint64_t fragments) const;
  void AddTo(CacheStats* stats) const;

 private:
  BlockStore(const CacheOptions& options, std::unique_ptr<pool::PagePool> pool,
             uint32_t difference_capacity, Counters* counters, Donors* donors, LowerTiers* tiers);
  void Evict(BlockId id);
  void EvictToTiers(BlockId id);  // after they had their chance to take it
  Status KeepToQuota(cache::OwnerId owner, uint64_t more_bytes);
  uint64_t BytesOf(cache::OwnerId owner) const;
  bool EvictNotes(BlockId page);  // false: it is none of notes
  void ForgetEmptyNotePages();
  Status Exhausted(uint64_t pages) const;
  uint64_t InUseSlabs() const;

  const KvShape shape_;
  const uint64_t budget_bytes_;
  const uint32_t difference_capacity_;  // rows of a difference block; 0: none are made
  Counters* const counters_;
  Donors* const donors_;
  LowerTiers* const tiers_;
  const std::unique_ptr<pool::PagePool> pool_;  // outlives the graph's references
  const uint64_t total_pages_;
  cache::BlockGraph graph_;
  match::PrefixIndex index_;
  const ObservedBlocks observed_;
  DonorNotes notes_;
  Owners owners_;
  uint64_t withheld_pages_ = 0;  // that stay free as long as something can be evicted instead
  // Since the first eviction: cost nothing before. `evicted_lately_` tells whether a block that
  // comes back was gone for a short time only (ADR 0019).
  std::optional<match::EvictedKeys> evicted_, evicted_lately_;
  uint64_t peak_in_use_bytes_ = 0;
};

}  // namespace kvlink::link
