// The block graph under thousands of random operations, against a naive one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "cache/block_graph.h"
#include "cache/testing/small_pool.h"

namespace kvlink::cache {
namespace {

using base::Random;
using base::TimePoint;
using std::chrono::seconds;

// The reference: blocks as a plain map, every question answered by scanning all of it.
struct NaiveBlock {
  BlockId parent = kNoBlock, base = kNoBlock;
  uint32_t rows = 0, depth = 0, users = 0, times_used = 1;
  uint64_t last_use = 0;
  bool kept = false;
  OwnerId owner = kNobody;
};

class NaiveGraph {
 public:
  std::map<BlockId, NaiveBlock> blocks;
  std::map<uint64_t, PinnedPrompt> pins;
  uint64_t tick = 0;

  void Add(BlockId id, BlockId parent, BlockId base, OwnerId owner) {
    NaiveBlock block{.parent = parent, .base = base, .users = 1, .last_use = ++tick};
    block.owner = owner;
    if (parent != kNoBlock) block.depth = blocks.at(parent).depth + 1;
    if (base != kNoBlock) ++blocks.at(base).users;
    blocks[id] = block;
  }
  bool Needed(BlockId id) const {
    return std::any_of(blocks.begin(), blocks.end(), [id](const auto& entry) {
      return entry.second.parent == id || entry.second.base == id;
    });
  }
  // The block, or what needs it, is the end of a pin.
  bool IsHeld(BlockId id, BlockId end) const {
    for (; end != kNoBlock; end = blocks.at(end).parent) {
      if (id == end || id == blocks.at(end).base) return true;
    }
    return false;
  }
  TimePoint PinnedUntil(BlockId id) const {
    TimePoint until = TimePoint::min();
    for (const auto& [number, pin] : pins) {
      if (IsHeld(id, pin.end)) until = std::max(until, pin.until);
    }
    return until;
  }
  bool IsPinned(BlockId id) const { return PinnedUntil(id) != TimePoint::min(); }
  void PassPinsOn(BlockId id) {  // to the parent
    const NaiveBlock& block = blocks.at(id);
    for (auto at = pins.begin(); at != pins.end();) {
      PinnedPrompt& pin = at->second;
      if (pin.end == id && block.parent == kNoBlock) {
        at = pins.erase(at);
        continue;
      }
      if (pin.end == id) pin = {block.parent, block.depth * kTokens, pin.until};
      ++at;
    }
  }
  void Forget(BlockId id) {
    PassPinsOn(id);
    blocks.at(id).kept = false;
    Sweep();
  }
  void Sweep() {  // frees what nothing needs, until nothing more is found
    const auto garbage = std::find_if(blocks.begin(), blocks.end(), [this](const auto& entry) {
      return !entry.second.kept && entry.second.users == 0 && !Needed(entry.first);
    });
    if (garbage == blocks.end()) return;
    PassPinsOn(garbage->first);
    blocks.erase(garbage);
    Sweep();
  }
  void Release(BlockId id) {
    for (const BlockId released : {id, blocks.at(id).base}) {
      if (released == kNoBlock) continue;
      --blocks.at(released).users;
      blocks.at(released).last_use = ++tick;
    }
    Sweep();
  }
  // Of all blocks, or of one owner's, as if there were so many pages.
  std::optional<BlockId> Victim(std::optional<OwnerId> owner, uint64_t pages) const {
    const auto counts = [owner](const NaiveBlock& b) { return !owner || b.owner == *owner; };
    uint64_t reused = 0;
    for (const auto& [id, b] : blocks) {
      reused += counts(b) && b.base == kNoBlock && b.users == 0 && b.times_used > 1;
    }
    std::array<std::optional<BlockId>, 2> first;  // used once; more often
    const auto rank = [&](BlockId id) {
      const NaiveBlock& b = blocks.at(id);
      const double cost = b.rows / 8.0 * (1 + b.depth * 8.0 / 4096);
      const auto worth =
          static_cast<uint64_t>(std::min(cost, 4.0) * (static_cast<double>(pages) / 2.0));
      return std::tuple(b.last_use + worth, ~b.depth, id);
    };
    for (const auto& [id, b] : blocks) {
      if (!counts(b) || !b.kept || b.users > 0 || IsPinned(id) || Needed(id)) continue;
      std::optional<BlockId>& victim = first[b.times_used > 1];
      if (!victim || rank(id) < rank(*victim)) victim = id;
    }
    const auto& [once, again] = first;
    if (!once || !again) return once ? once : again;
    const auto held = static_cast<double>(reused), total = static_cast<double>(pages);
    if (held > EvictionOrder::kReusedShare * total) return again;
    const bool is_older = std::get<0>(rank(*again)) + pages < std::get<0>(rank(*once));
    return held > EvictionOrder::kProtectedShare * total && is_older ? again : once;
  }
};

// Thousands of random operations; after each, the graph's answers equal those of the reference.
class RandomOperations : public ::testing::TestWithParam<uint64_t> {
 protected:
  using Chain = std::vector<BlockId>;  // what one sequence uses
  static constexpr OwnerId kLimited = 1;
  static constexpr uint64_t kPrompts = 6;  // that are pinned and unpinned
  RandomOperations() { graph_.Limit(kLimited, limit_); }

  void Begin() {  // after a random kept block, or from the root
    Chain chain;
    if (!naive_.blocks.empty() && !random_.OneIn(4)) {
      auto at = std::next(naive_.blocks.begin(), random_.Below(naive_.blocks.size()));
      if (!at->second.kept) return;
      for (BlockId id = at->first; id != kNoBlock; id = naive_.blocks.at(id).parent) {
        chain.insert(chain.begin(), id);
      }
    }
    for (const BlockId id : chain) {
      graph_.Acquire(id);
      ++naive_.blocks.at(id).users;
      const BlockId base = naive_.blocks.at(id).base;
      if (base != kNoBlock) ++naive_.blocks.at(base).users;
      for (const BlockId used : {id, base}) {
        if (used == kNoBlock) continue;
        ++naive_.blocks.at(used).times_used;
        naive_.blocks.at(used).last_use = ++naive_.tick;
      }
      graph_.CountUse(id);
    }
    sequences_.push_back(chain);
  }
  bool MakeRoom() {
    while (pool_->Counts().free == 0) {
      auto victim = graph_.VictimOf(kLimited);
      if (!victim || random_.OneIn(2)) victim = graph_.Victim();
      if (!victim) return false;
      Evict(*victim);
    }
    return true;
  }
  void Evict(BlockId id) {
    naive_.Forget(id);
    graph_.Forget(id);
  }
  void Append(Chain& chain) {
    if (!MakeRoom()) return;
    const BlockId parent = chain.empty() ? kNoBlock : chain.back();
    const OwnerId owner =
        parent == kNoBlock ? static_cast<OwnerId>(random_.Below(3)) : graph_[parent].owner;
    const BlockId id = graph_.Add(pool_->AllocatePage().value(), parent, 0, owner);
    naive_.Add(id, parent, kNoBlock, owner);
    chain.push_back(id);
    Write(id);
  }
  void Diverge(const Chain& chain) {  // a second sequence, whose last block differs from this one's
    const BlockId source = chain.back();
    const BlockId base =
        naive_.blocks.at(source).base == kNoBlock ? source : naive_.blocks.at(source).base;
    if (!MakeRoom()) return;
    Chain fork(chain.begin(), chain.end() - 1);
    for (const BlockId id : fork) {
      graph_.Acquire(id);
      ++naive_.blocks.at(id).users;
      if (naive_.blocks.at(id).base != kNoBlock)
        ++naive_.blocks.at(naive_.blocks.at(id).base).users;
    }
    const BlockId parent = naive_.blocks.at(base).parent;
    const BlockId id =
        graph_.AddDifference(pool_->AllocateFragment().value(), base, parent, 0, 0, kCapacity);
    naive_.Add(id, parent, base, naive_.blocks.at(base).owner);
    fork.push_back(id);
    sequences_.push_back(fork);
    Write(id);
  }
  void Write(BlockId id) {
    const auto rows = static_cast<uint32_t>(random_.Below(kTokens + 1 - naive_.blocks.at(id).rows) +
                                            naive_.blocks.at(id).rows);
    graph_.SetRows(id, rows);
    naive_.blocks.at(id).rows = rows;
    if (random_.OneIn(3)) return;
    graph_.Keep(id);
    naive_.blocks.at(id).kept = true;
  }
  void End(size_t index) {
    const Chain chain = sequences_[index];
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
    for (auto id = chain.rbegin(); id != chain.rend(); ++id) {
      graph_.Release(*id);
      naive_.Release(*id);
    }
  }
  BlockId AnyBlock() {
    return std::next(naive_.blocks.begin(), random_.Below(naive_.blocks.size()))->first;
  }
  void Pin() {
    if (naive_.blocks.empty()) return;
    const BlockId end = AnyBlock();
    const uint64_t number = random_.Below(kPrompts);
    if (!naive_.blocks.at(end).kept || naive_.pins.contains(number)) return;
    const auto [pages, fragments] = graph_.CostOfPin(end);
    const BlockId base = naive_.blocks.at(end).base;
    ASSERT_EQ(fragments, base != kNoBlock && !naive_.IsPinned(end) ? 1u : 0u);
    ASSERT_EQ(pages, naive_.IsPinned(base == kNoBlock ? end : base) ? 0u : 1u);
    const auto rows = static_cast<uint32_t>(1 + random_.Below(kTokens));
    const PinnedPrompt pin{end, naive_.blocks.at(end).depth * kTokens + rows,
                           now_ + seconds(1 + random_.Below(30))};
    graph_.Pin({.lo = number, .hi = 0}, pin);
    naive_.pins[number] = pin;
  }
  void Unpin() {
    const uint64_t number = random_.Below(kPrompts);
    std::optional<uint32_t> tokens;
    if (const auto pin = naive_.pins.extract(number)) {
      const PinnedPrompt& was = pin.mapped();
      tokens = 0;
      for (BlockId id = was.end; id != kNoBlock; id = naive_.blocks.at(id).parent) {
        if (naive_.IsPinned(id)) continue;
        *tokens += id == was.end ? was.tokens - naive_.blocks.at(id).depth * kTokens : kTokens;
      }
    }
    ASSERT_EQ(graph_.Unpin({.lo = number, .hi = 0}), tokens) << number;
  }
  void Expire(std::chrono::seconds later) {
    now_ += later;
    graph_.ExpirePins(now_);
    std::erase_if(naive_.pins, [this](const auto& pin) { return pin.second.until <= now_; });
  }
  // As when the same rows were findable under another number before: whoever uses it goes on.
  void Abandon() {
    if (naive_.blocks.empty()) return;
    const BlockId id = AnyBlock();
    if (naive_.blocks.at(id).kept) Evict(id);
  }
  void Step() {
    const uint64_t dice = random_.Below(100);
    const size_t index = sequences_.empty() ? 0 : random_.Below(sequences_.size());
    if (dice < 15 || sequences_.empty()) {
      Begin();
    } else if (dice < 55) {
      Append(sequences_[index]);
    } else if (dice < 65) {
      if (!sequences_[index].empty()) Diverge(sequences_[index]);
    } else if (dice < 90) {
      End(index);
    } else if (dice < 94) {
      Pin();
    } else if (dice < 97) {
      Unpin();
    } else if (dice < 98) {
      Expire(seconds(5));
    } else if (dice < 99) {
      Abandon();
    } else {  // as whoever runs the server may
      limit_ = 1 + random_.Below(kPages);
      graph_.Limit(kLimited, limit_);
    }
  }
  void Compare() {
    graph_.Validate();
    ASSERT_EQ(graph_.num_pins(), naive_.pins.size());
    const std::vector<TimePoint> until = graph_.PinnedUntil();
    GraphCounts expected;
    for (const auto& [id, b] : naive_.blocks) {
      const bool used = b.users > 0, pinned = naive_.IsPinned(id);
      ASSERT_TRUE(graph_[id].present) << id;
      ASSERT_EQ(graph_[id].users, b.users) << id;
      ASSERT_EQ(until.empty() ? TimePoint::min() : until[id], naive_.PinnedUntil(id)) << id;
      ++expected.blocks;
      if (b.base != kNoBlock) {
        ++(used ? expected.in_use_fragments : expected.cached_fragments);
        expected.pinned_fragments += pinned;
        continue;
      }
      ++(used ? expected.in_use_pages : expected.cached_pages);
      expected.pinned_pages += pinned;
      expected.evictable_pages += !used && !pinned;
      expected.reused_cached_pages += !used && b.times_used > 1;
      expected.shared_pages += b.users > 1;
    }
    ASSERT_EQ(graph_.counts(), expected);
    ASSERT_EQ(graph_.Victim(), naive_.Victim(std::nullopt, kPages));
    ASSERT_EQ(graph_.VictimOf(kLimited), naive_.Victim(kLimited, limit_));
    OwnerCounts all;
    for (OwnerId owner = 0; owner < 3; ++owner) {
      const OwnerCounts counts = graph_.CountsOf(owner);
      all.pages += counts.pages;
      all.fragments += counts.fragments;
      all.evictable_pages += counts.evictable_pages;
      all.reused_cached_pages += counts.reused_cached_pages;
    }
    ASSERT_EQ(all.pages, expected.in_use_pages + expected.cached_pages);
    ASSERT_EQ(all.fragments, expected.in_use_fragments + expected.cached_fragments);
    ASSERT_EQ(all.evictable_pages, expected.evictable_pages);
    ASSERT_EQ(all.reused_cached_pages, expected.reused_cached_pages);
    const pool::PoolCounts counts = pool_->Counts();
    ASSERT_EQ(counts.pages, expected.in_use_pages + expected.cached_pages);
    ASSERT_EQ(counts.fragments, expected.in_use_fragments + expected.cached_fragments);
    ASSERT_EQ(counts.free + counts.pages + counts.slabs, counts.total);
  }

  std::unique_ptr<pool::PagePool> pool_ = MakePool();
  BlockGraph graph_{kTokens, kPages};
  NaiveGraph naive_;
  std::vector<Chain> sequences_;
  Random random_{GetParam()};
  TimePoint now_{};
  uint64_t limit_ = kPages / 4;  // of kLimited
};

TEST_P(RandomOperations, AgreeWithTheNaiveGraphAndDrainToNothing) {
  for (int step = 0; step < 4000; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step()) << "step " << step;
    ASSERT_NO_FATAL_FAILURE(Compare()) << "step " << step;
  }
  while (!sequences_.empty()) End(0);
  Expire(seconds(60));
  ASSERT_NO_FATAL_FAILURE(Compare());
  while (const auto victim = graph_.Victim()) Evict(*victim);
  EXPECT_EQ(graph_.counts(), GraphCounts());
  EXPECT_EQ(pool_->Counts().free, kPages);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOperations, ::testing::Range<uint64_t>(1, 9));

}  // namespace
}  // namespace kvlink::cache
