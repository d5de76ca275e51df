#include "link/block_store.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "link/lower_tiers.h"

namespace kvlink::link {

Result<std::unique_ptr<BlockStore>> BlockStore::Create(const CacheOptions& options,
                                                       Counters* counters, Donors* donors,
                                                       LowerTiers* tiers) {
  const KvShape& shape = options.shape;
  const uint32_t capacity =
      cache::DifferenceCapacity(shape.tokens_per_block, options.cow_copy_threshold);
  auto pool = pool::PagePool::Create({.page_bytes = shape.page_bytes(),
                                      .fragment_bytes = DifferenceView::CellsBytes(shape, capacity),
                                      .budget_bytes = options.budget_bytes,
                                      .poison = options.poison});
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<BlockStore>(
      new BlockStore(options, std::move(pool).value(), capacity, counters, donors, tiers));
}

BlockStore::BlockStore(const CacheOptions& options, std::unique_ptr<pool::PagePool> pool,
                       uint32_t difference_capacity, Counters* counters, Donors* donors,
                       LowerTiers* tiers)
    : shape_(options.shape),
      budget_bytes_(options.budget_bytes),
      difference_capacity_(difference_capacity),
      counters_(counters),
      donors_(donors),
      tiers_(tiers),
      pool_(std::move(pool)),
      total_pages_(pool_->Counts().total),
      graph_(shape_.tokens_per_block, total_pages_),
      index_(shape_.tokens_per_block,
             match::KeyMaker(options.model_fingerprint, options.hash_bits)),
      observed_(options.observer, index_.keys()),
      notes_(shape_.page_bytes()) {}

Status BlockStore::MakeRoom(cache::OwnerId owner, uint64_t pages, uint64_t fragments,
                            base::TimePoint now) {
  graph_.SetNow(now);
  graph_.ExpirePins(now);
  const auto needed = [&] { return pages + pool_->PagesForFragments(fragments); };
  const pool::PoolCounts counts = pool_->Counts();
  // A slab comes back with its last fragment: how many do shows only on the way.
  const uint64_t most = counts.free + graph_.counts().evictable_pages + counts.slabs;
  if (needed() > most) return Exhausted(pages);
  if (Status fits = KeepToQuota(owner, BytesOf(pages, fragments)); !fits.ok()) return fits;
  while (pool_->Counts().free < needed() + withheld_pages_) {
    const std::optional<BlockId> victim = graph_.Victim();
    if (!victim && pool_->Counts().free >= needed()) break;
    if (!victim) return Exhausted(pages);
    EvictToTiers(*victim);
  }
  return Status::Ok();
}

void BlockStore::EvictToTiers(BlockId id) {
  if (tiers_ != nullptr) tiers_->BeforeEviction(*this, id);
  Evict(id);
}

Status BlockStore::Exhausted(uint64_t pages) const {
  const cache::GraphCounts& counts = graph_.counts();
  return {StatusCode::kResourceExhausted,
          "no room for " + std::to_string(pages) + " more pages: of " +
              std::to_string(total_pages_) + ", " + std::to_string(counts.in_use_pages) +
              " are in use and " + std::to_string(counts.pinned_pages) + " are pinned"};
}

void BlockStore::Evict(BlockId id) {
  if (EvictNotes(id)) return;
  if (index_.IsFull(id)) {
    if (!evicted_) {
      // What tiers should have had is regretted at several times the RAM, where they are of use.
      evicted_.emplace(total_pages_ * (tiers_ != nullptr ? 16 : 2));
      evicted_lately_.emplace(total_pages_ / 2);
    }
    evicted_->Add(index_.KeyOf(id));
    evicted_lately_->Add(index_.KeyOf(id));
    observed_.Removed(index_, id);
  }
  if (donors_ != nullptr) {
    donors_->Evicted(id, index_.ParentOf(id), graph_[id].depth * shape_.tokens_per_block);
    DropNote(id);
  }
  if (tiers_ != nullptr) tiers_->Forget(id);
  index_.Erase(id);
  graph_.Forget(id);
  counters_->evicted_blocks.Add();
}

BlockId BlockStore::AddPage(BlockId parent, uint64_t appender, cache::OwnerId owner) {
  auto page = pool_->AllocatePage();
  KVLINK_CHECK(page.ok()) << page.status().message();
  return graph_.Add(std::move(page).value(), parent, appender, owner);
}

BlockId BlockStore::AddCopyOnWrite(const cache::CopyOnWrite& cow, BlockId source, uint64_t appender,
                                   std::optional<PendingCopy>* copy) {
  const BlockId parent = graph_[source].parent;
  BlockId id = kNoBlock;
  if (cow.place == cache::WritePlace::kDifference) {
    auto cells = pool_->AllocateFragment();
    KVLINK_CHECK(cells.ok()) << cells.status().message();
    id = graph_.AddDifference(std::move(cells).value(), cow.base, parent, appender, cow.copy_from,
                              difference_capacity_);
    counters_->cow_difference_blocks.Add();
  } else {
    id = AddPage(parent, appender, graph_[source].owner);
    counters_->cow_full_copies.Add();
  }
  graph_.SetRows(id, cow.shared_rows);
  if (cow.copy_from < cow.shared_rows) {
    *copy = PendingCopy{graph_.View(source), graph_.View(id), cow.copy_from,
                        cow.shared_rows - cow.copy_from};
  }
  return id;
}

BlockId BlockStore::Publish(BlockId id, const match::Root& root, std::span<const TokenId> tokens,
                            uint32_t num_new, bool may_leave_ram) {
  const bool known = index_.Contains(id);
  const BlockId standing = known ? index_.Grow(id, tokens.last(num_new))
                                 : index_.Insert(id, root, graph_[id].parent, tokens);
  if (standing != id) {
    if (donors_ != nullptr) {
      donors_->GoneOver(id, standing);
      notes_.Move(id, standing);
      ForgetEmptyNotePages();
    }
    if (known) graph_.Forget(id);  // its user keeps it alive until the caller has gone over
    return standing;
  }
  if (!known) graph_.Keep(id);
  if (tokens.size() < shape_.tokens_per_block) return id;
  counters_->stored_blocks.Add();
  observed_.Stored(index_, id, root);
  if (evicted_lately_ && evicted_lately_->Contains(index_.KeyOf(id))) {
    graph_.CountUse(id);  // wanted again: no one-off
  }
  if (tiers_ != nullptr) tiers_->NoteFull(id, root, graph_[id].parent, tokens, may_leave_ram);
  return id;
}

bool BlockStore::Clear() {
  graph_.UnpinAll();
  while (const std::optional<BlockId> victim = graph_.Victim()) Evict(*victim);
  evicted_.reset();
  evicted_lately_.reset();
  if (index_.num_blocks() > 0) return false;
  observed_.Cleared();
  return true;
}

uint64_t BlockStore::BytesOf(uint64_t pages, uint64_t fragments) const {
  return pages * shape_.page_bytes() +
         fragments * DifferenceView::CellsBytes(shape_, difference_capacity_);
}

uint64_t BlockStore::pinned_bytes() const {
  return BytesOf(graph_.counts().pinned_pages, graph_.counts().pinned_fragments);
}

void BlockStore::NotePeak() {
  const cache::GraphCounts& counts = graph_.counts();
  peak_in_use_bytes_ =
      std::max(peak_in_use_bytes_, BytesOf(counts.in_use_pages, counts.in_use_fragments));
}

// Slabs mix fragments in use and cached ones; as many count as in use as those in use would fill.
uint64_t BlockStore::InUseSlabs() const {
  const uint64_t fragments = graph_.counts().in_use_fragments;
  if (fragments == 0) return 0;
  const uint64_t per_page = pool_->fragments_per_page();
  return std::min(pool_->Counts().slabs, (fragments + per_page - 1) / per_page);
}

void BlockStore::AddTo(CacheStats* stats) const {
  const cache::GraphCounts& graph = graph_.counts();
  const pool::PoolCounts pool = pool_->Counts();
  const uint64_t in_use_slabs = InUseSlabs();
  stats->total_pages = total_pages_;
  stats->free_pages = pool.free;
  stats->in_use_pages = graph.in_use_pages + in_use_slabs;
  stats->cached_pages = graph.cached_pages + pool.slabs - in_use_slabs;
  stats->page_bytes = shape_.page_bytes();
  stats->in_use_bytes = BytesOf(graph.in_use_pages, graph.in_use_fragments);
  stats->cached_bytes = BytesOf(graph.cached_pages, graph.cached_fragments);
  stats->peak_in_use_bytes = peak_in_use_bytes_;
  stats->budget_bytes = budget_bytes_;
  stats->pinned_bytes = pinned_bytes();
  stats->shared_bytes = BytesOf(graph.shared_pages, 0);
  stats->donor_notes = notes_.num_notes();
  stats->note_pages = notes_.num_pages();
  stats->tracking_bytes +=
      graph_.tracking_bytes() + index_.tracking_bytes() +
      (evicted_ ? evicted_->tracking_bytes() + evicted_lately_->tracking_bytes() : 0) +
      pool_->tracking_bytes() + notes_.tracking_bytes() + owners_.tracking_bytes();
}

}  // namespace kvlink::link
