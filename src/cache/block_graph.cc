#include "cache/block_graph.h"

#include <algorithm>

#include "base/check.h"

namespace kvlink::cache {
namespace {

constexpr uint32_t kOneLess = ~uint32_t{0};  // -1, modulo 2^32

}  // namespace

Difference::Difference(pool::FragmentRef fragment, uint32_t tokens_per_block, uint32_t first,
                       uint32_t capacity)
    : cells(std::move(fragment)), first_row(first) {
  slots.fill(-1);
  for (uint32_t i = 0; i < capacity && first + i < tokens_per_block; ++i) {
    slots[first + i] = static_cast<int8_t>(i);
  }
  view = {.cells = cells.data(), .slots = slots.data(), .slot_stride = 0, .capacity = capacity};
}

BlockGraph::BlockGraph(uint32_t tokens_per_block, uint64_t total_pages)
    : tokens_per_block_(tokens_per_block), order_(tokens_per_block, total_pages) {}

// The one place that keeps counters and candidates true: takes the block out of both, changes it,
// puts it back.
template <typename Change>
void BlockGraph::Update(BlockId id, Change change) {
  Block& block = blocks_[id];
  if (block.present) {
    if (IsCandidate(block)) {
      ForOrders(id, [](EvictionOrder& order, const EvictionKey& key) { order.Remove(key); });
    }
    Count(block, ~uint64_t{0});  // -1, modulo 2^64
  }
  change(block);
  if (block.present) {
    Count(block, 1);
    if (IsCandidate(block)) {
      ForOrders(id, [](EvictionOrder& order, const EvictionKey& key) { order.Add(key); });
    }
  }
}

// The common order, and the owner's where there is one.
template <typename Visit>
void BlockGraph::ForOrders(BlockId id, Visit visit) {
  const Block& block = blocks_[id];
  const auto visit_one = [&](EvictionOrder& order) {
    visit(order, order.KeyOf(id, block.rows, block.depth, block.times_used, block.last_use));
  };
  visit_one(order_);
  if (EvictionOrder* own = owned_[block.owner].order.get()) visit_one(*own);
}

void BlockGraph::Count(const Block& block, uint64_t sign) {
  counts_.blocks += sign;
  const bool used = block.users > 0, pinned = block.pins > 0;
  if (block.owner >= owned_.size()) owned_.resize(size_t{block.owner} + 1);
  OwnerCounts& own = owned_[block.owner].counts;
  (block.difference ? own.fragments : own.pages) += sign;
  if (!used && !pinned) (block.difference ? own.evictable_fragments : own.evictable_pages) += sign;
  if (!used && !block.difference && block.times_used > 1) own.reused_cached_pages += sign;
  if (block.difference) {
    (used ? counts_.in_use_fragments : counts_.cached_fragments) += sign;
    if (pinned) counts_.pinned_fragments += sign;
    return;
  }
  (used ? counts_.in_use_pages : counts_.cached_pages) += sign;
  if (pinned) counts_.pinned_pages += sign;
  if (!used && !pinned) counts_.evictable_pages += sign;
  if (!used && block.times_used > 1) counts_.reused_cached_pages += sign;
  if (block.users > 1) counts_.shared_pages += sign;
}

bool BlockGraph::IsCandidate(const Block& block) const {
  return block.kept && block.users == 0 && block.children == 0 && block.differences == 0 &&
         block.pins == 0;
}

BlockId BlockGraph::NewBlock(BlockId parent, uint64_t appender, OwnerId owner) {
  BlockId id = static_cast<BlockId>(blocks_.size());
  if (free_ids_.empty()) {
    blocks_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  Block& block = blocks_[id];
  block.parent = parent;
  block.appender = appender;
  block.owner = owner;
  block.users = 1;
  block.times_used = 1;
  block.last_use = block.serial = ++tick_;
  block.made = block.used = now_;
  if (parent != kNoBlock) {
    block.depth = blocks_[parent].depth + 1;
    Update(parent, [](Block& p) { ++p.children; });
  }
  return id;
}

BlockId BlockGraph::Add(pool::PageRef page, BlockId parent, uint64_t appender, OwnerId owner) {
  const BlockId id = NewBlock(parent, appender, owner);
  Update(id, [&](Block& block) {
    block.page = std::move(page);
    block.present = true;
  });
  return id;
}

BlockId BlockGraph::AddDifference(pool::FragmentRef cells, BlockId base, BlockId parent,
                                  uint64_t appender, uint32_t first_row, uint32_t capacity) {
  KVLINK_CHECK(!blocks_[base].difference) << "block " << base << " is itself a difference";
  KVLINK_CHECK(first_row <= blocks_[base].rows)
      << "row " << first_row << " of base " << base << " with " << blocks_[base].rows << " rows";
  const BlockId id = NewBlock(parent, appender, blocks_[base].owner);
  Update(base, [](Block& b) {
    ++b.differences;
    ++b.users;
  });
  Update(id, [&](Block& block) {
    block.page = blocks_[base].page;
    block.base = base;
    block.difference =
        std::make_unique<Difference>(std::move(cells), tokens_per_block_, first_row, capacity);
    block.present = true;
  });
  return id;
}

void BlockGraph::Acquire(BlockId id) {
  Update(id, [](Block& block) { ++block.users; });
  if (blocks_[id].base != kNoBlock) Update(blocks_[id].base, [](Block& b) { ++b.users; });
}

void BlockGraph::Release(BlockId id) {
  KVLINK_CHECK(blocks_[id].users > 0) << "block " << id << " has no user to release";
  const auto drop_user = [this](Block& block) {
    --block.users;
    block.last_use = ++tick_;
    block.used = now_;
  };
  const BlockId base = blocks_[id].base;
  Update(id, drop_user);
  if (base != kNoBlock) Update(base, drop_user);
  FreeIfUnneeded(id);
}

void BlockGraph::CountUse(BlockId id) {
  const auto use = [this](Block& block) {
    ++block.times_used;
    block.last_use = ++tick_;
    block.used = now_;
  };
  Update(id, use);
  if (blocks_[id].base != kNoBlock) Update(blocks_[id].base, use);
}

void BlockGraph::SetRows(BlockId id, uint32_t rows) {
  KVLINK_CHECK(rows >= blocks_[id].rows && rows <= tokens_per_block_)
      << "block " << id << " from " << blocks_[id].rows << " to " << rows << " rows";
  Update(id, [rows](Block& block) { block.rows = rows; });
}

void BlockGraph::SetAppender(BlockId id, uint64_t appender) { blocks_[id].appender = appender; }

void BlockGraph::Keep(BlockId id) {
  Update(id, [](Block& block) { block.kept = true; });
}

void BlockGraph::Forget(BlockId id) {
  if (blocks_[id].pins > 0) PassPinsOn(id);
  Update(id, [](Block& block) { block.kept = false; });
  FreeIfUnneeded(id);
}

void BlockGraph::Reparent(BlockId id, BlockId parent) {
  const BlockId old = blocks_[id].parent;
  KVLINK_CHECK(old != kNoBlock && blocks_[old].depth == blocks_[parent].depth)
      << "block " << id << " cannot move from " << old << " to " << parent;
  KVLINK_CHECK(blocks_[id].pins == 0) << "block " << id << " is pinned, " << parent << " not";
  Update(parent, [](Block& p) { ++p.children; });
  Update(old, [](Block& p) { --p.children; });
  blocks_[id].parent = parent;
  FreeIfUnneeded(old);
}

// Frees a block that nothing needs and no index knows, then what only it needed.
void BlockGraph::FreeIfUnneeded(BlockId first) {
  std::vector<BlockId> queue{first};
  while (!queue.empty()) {
    const BlockId id = queue.back();
    queue.pop_back();
    Block& block = blocks_[id];
    if (!block.present || block.kept || block.users > 0 || block.children > 0 ||
        block.differences > 0) {
      continue;
    }
    if (block.pins > 0) PassPinsOn(id);
    const BlockId parent = block.parent, base = block.base;
    Update(id, [](Block& b) { b.present = false; });
    block = Block();
    free_ids_.push_back(id);
    if (parent != kNoBlock) {
      Update(parent, [](Block& p) { --p.children; });
      queue.push_back(parent);
    }
    if (base != kNoBlock) {
      Update(base, [](Block& b) { --b.differences; });
      queue.push_back(base);
    }
  }
}

std::optional<BlockId> BlockGraph::Victim() const {
  return order_.First(counts_.reused_cached_pages);
}

void BlockGraph::Limit(OwnerId owner, uint64_t pages) {
  if (owner >= owned_.size()) owned_.resize(size_t{owner} + 1);
  auto& order = owned_[owner].order;
  order.reset();
  if (pages == 0) return;
  order = std::make_unique<EvictionOrder>(tokens_per_block_, pages);
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (!block.present || block.owner != owner || !IsCandidate(block)) continue;
    order->Add(order->KeyOf(id, block.rows, block.depth, block.times_used, block.last_use));
  }
}

std::optional<BlockId> BlockGraph::VictimOf(OwnerId owner) const {
  KVLINK_CHECK(owner < owned_.size() && owned_[owner].order)
      << "owner " << owner << " has no limit";
  return owned_[owner].order->First(owned_[owner].counts.reused_cached_pages);
}

OwnerCounts BlockGraph::CountsOf(OwnerId owner) const {
  return owner < owned_.size() ? owned_[owner].counts : OwnerCounts();
}

// Visits the block, its base (which has the same parent) and all blocks before it, until `visit`
// says that this one and all that it needs are known already.
template <typename Visit>
void BlockGraph::ForPinClosure(BlockId id, Visit visit) const {
  for (; id != kNoBlock; id = blocks_[id].parent) {
    if (!visit(id)) return;
    if (blocks_[id].base != kNoBlock && !visit(blocks_[id].base)) return;
  }
}

void BlockGraph::ChangePins(BlockId end, uint32_t by) {
  ForPinClosure(end, [&](BlockId id) {
    Update(id, [by](Block& block) { block.pins += by; });
    return true;
  });
}

void BlockGraph::Pin(const PinKey& key, const PinnedPrompt& pin) {
  pins_.Add(key, pin);
  ChangePins(pin.end, 1);
}

std::optional<uint32_t> BlockGraph::Unpin(const PinKey& key) {
  const std::optional<PinnedPrompt> pin = pins_.Take(key);
  if (!pin) return std::nullopt;
  ChangePins(pin->end, kOneLess);
  BlockId held = pin->end;
  while (held != kNoBlock && blocks_[held].pins == 0) held = blocks_[held].parent;
  const uint32_t tokens = held == kNoBlock ? 0 : (blocks_[held].depth + 1) * tokens_per_block_;
  return pin->tokens - std::min(pin->tokens, tokens);
}

// To the parent: what stands before the block stays pinned.
void BlockGraph::PassPinsOn(BlockId id) {
  const BlockId parent = blocks_[id].parent;
  for (const PinKey& key : pins_.EndingAt(id)) {
    const PinnedPrompt pin = *pins_.Take(key);
    ChangePins(id, kOneLess);
    if (parent == kNoBlock) continue;
    Pin(key, {parent, (blocks_[parent].depth + 1) * tokens_per_block_, pin.until});
  }
}

std::pair<uint64_t, uint64_t> BlockGraph::CostOfPin(BlockId id) const {
  std::pair<uint64_t, uint64_t> cost{0, 0};
  for (const BlockId held : {id, blocks_[id].base}) {
    if (held == kNoBlock || blocks_[held].pins > 0) continue;
    ++(blocks_[held].difference ? cost.second : cost.first);
  }
  return cost;
}

void BlockGraph::ExpirePins(base::TimePoint now) {
  while (const std::optional<PinKey> key = pins_.Expired(now)) Unpin(*key);
}

std::vector<base::TimePoint> BlockGraph::PinnedUntil() const {
  if (pins_.size() == 0) return {};
  std::vector<base::TimePoint> until(blocks_.size(), base::TimePoint::min());
  pins_.ForLastFirst([&](const PinnedPrompt& pin) {
    ForPinClosure(pin.end, [&](BlockId id) {
      if (until[id] != base::TimePoint::min()) return false;  // by one that lasts longer
      until[id] = pin.until;
      return true;
    });
  });
  return until;
}

void BlockGraph::UnpinAll() { ExpirePins(base::TimePoint::max()); }

BlockView BlockGraph::View(BlockId id) const {
  const Block& block = blocks_[id];
  return {block.page.data(), block.difference ? &block.difference->view : nullptr};
}

size_t BlockGraph::tracking_bytes() const {
  constexpr size_t kTreeNode = 4 * sizeof(void*);  // colour and links of a std::set node
  const uint64_t differences = counts_.in_use_fragments + counts_.cached_fragments;
  size_t own = owned_.capacity() * sizeof(Owned);
  for (const Owned& owned : owned_) {
    if (owned.order) own += owned.order->size() * (sizeof(EvictionKey) + kTreeNode);
  }
  return own + blocks_.size() * sizeof(Block) + free_ids_.capacity() * sizeof(BlockId) +
         differences * sizeof(Difference) + order_.size() * (sizeof(EvictionKey) + kTreeNode) +
         pins_.tracking_bytes();
}

void BlockGraph::Validate() const {
  BlockGraph again(tokens_per_block_, 0);
  std::vector<uint32_t> children(blocks_.size()), differences(blocks_.size());
  std::vector<uint32_t> pins(blocks_.size());
  size_t candidates = 0;
  std::vector<size_t> own_candidates(owned_.size());
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (!block.present) continue;
    again.Count(block, 1);
    candidates += IsCandidate(block);
    own_candidates[block.owner] += IsCandidate(block);
    for (const BlockId needed : {block.parent, block.base}) {
      if (needed == kNoBlock) continue;
      KVLINK_CHECK(blocks_[needed].present) << "block " << id << " needs freed " << needed;
      KVLINK_CHECK(block.users == 0 || blocks_[needed].users > 0)
          << "block " << id << " is in use, " << needed << " that it needs is not";
    }
    if (block.parent != kNoBlock) ++children[block.parent];
    if (block.base == kNoBlock) continue;
    ++differences[block.base];
    KVLINK_CHECK(blocks_[block.base].parent == block.parent) << "difference " << id;
    KVLINK_CHECK(blocks_[block.base].page == block.page) << "difference " << id;
  }
  pins_.ForLastFirst([&](const PinnedPrompt& pin) {
    ForPinClosure(pin.end, [&](BlockId id) { return ++pins[id] > 0; });
  });
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    KVLINK_CHECK(children[id] == blocks_[id].children) << "children of block " << id;
    KVLINK_CHECK(differences[id] == blocks_[id].differences) << "differences of block " << id;
    KVLINK_CHECK(pins[id] == blocks_[id].pins) << "pins of block " << id;
  }
  KVLINK_CHECK(again.counts_ == counts_) << "counters drifted";
  for (OwnerId owner = 0; owner < owned_.size(); ++owner) {
    KVLINK_CHECK(again.CountsOf(owner) == owned_[owner].counts) << "counters of owner " << owner;
    KVLINK_CHECK(!owned_[owner].order || owned_[owner].order->size() == own_candidates[owner])
        << "candidates of owner " << owner;
  }
  KVLINK_CHECK(candidates == order_.size()) << candidates << " candidates, " << order_.size();
}

}  // namespace kvlink::cache
