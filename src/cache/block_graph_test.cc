#include "cache/block_graph.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "cache/testing/small_pool.h"

namespace kvlink::cache {
namespace {

using base::TimePoint;
using std::chrono::seconds;

class BlockGraphTest : public ::testing::Test {
 protected:
  BlockId Add(BlockId parent = kNoBlock) {
    return graph_.Add(pool_->AllocatePage().value(), parent, 0);
  }
  BlockId AddDifference(BlockId base, BlockId parent = kNoBlock) {
    return graph_.AddDifference(pool_->AllocateFragment().value(), base, parent, 0, 0, kCapacity);
  }
  // A chain of `length` kept blocks after `parent`, without users.
  std::vector<BlockId> Chain(size_t length, BlockId parent = kNoBlock) {
    std::vector<BlockId> chain;
    for (size_t i = 0; i < length; ++i) {
      parent = Add(parent);
      graph_.Keep(parent);
      chain.push_back(parent);
    }
    ReleaseAll(chain);
    return chain;
  }
  void ReleaseAll(const std::vector<BlockId>& chain) {
    for (auto id = chain.rbegin(); id != chain.rend(); ++id) graph_.Release(*id);
  }
  static PinKey Key(uint64_t number) { return {.lo = number, .hi = 0}; }
  // A prompt that ends with the block.
  void Pin(uint64_t number, BlockId end, TimePoint until) {
    graph_.Pin(Key(number), {end, (graph_[end].depth + 1) * kTokens, until});
  }
  // Evicts until nothing can be evicted.
  std::vector<BlockId> Drain() {
    std::vector<BlockId> order;
    while (const auto victim = graph_.Victim()) {
      order.push_back(*victim);
      graph_.Forget(*victim);
      graph_.Validate();
    }
    return order;
  }

  std::unique_ptr<pool::PagePool> pool_ = MakePool();
  BlockGraph graph_{kTokens, kPages};
};

TEST_F(BlockGraphTest, AChainIsEvictedLeafFirst) {
  const std::vector<BlockId> chain = Chain(3);
  EXPECT_EQ(Drain(), (std::vector<BlockId>{chain[2], chain[1], chain[0]}));
  EXPECT_EQ(pool_->Counts().free, kPages);
}

TEST_F(BlockGraphTest, ABlockInUseAndAllBeforeItStay) {
  const std::vector<BlockId> chain = Chain(4);
  graph_.Acquire(chain[0]);
  graph_.Acquire(chain[1]);
  EXPECT_EQ(Drain(), (std::vector<BlockId>{chain[3], chain[2]}));
  graph_.Release(chain[1]);
  graph_.Release(chain[0]);
  EXPECT_EQ(Drain(), (std::vector<BlockId>{chain[1], chain[0]}));
}

TEST_F(BlockGraphTest, ABaseOutlivesItsDifferences) {
  const BlockId base = Add();
  graph_.Keep(base);
  const BlockId difference = AddDifference(base);
  graph_.Keep(difference);
  graph_.Release(base);
  EXPECT_FALSE(graph_.Victim().has_value());  // the difference's user reads the base, too
  EXPECT_EQ(graph_.counts().in_use_pages, 1u);
  graph_.Release(difference);
  EXPECT_EQ(Drain(), (std::vector<BlockId>{difference, base}));
  EXPECT_EQ(pool_->Counts().free, kPages);
}

TEST_F(BlockGraphTest, WhatNoIndexKnowsIsFreedWithItsLastUserAndThenWhatOnlyItNeeded) {
  const BlockId root = Add(), middle = Add(root);
  const BlockId leaf = Add(middle);
  graph_.Release(root);
  graph_.Release(middle);
  EXPECT_EQ(graph_.counts().blocks, 3u);  // the leaf needs both
  graph_.Release(leaf);
  EXPECT_EQ(graph_.counts().blocks, 0u);
  EXPECT_EQ(pool_->Counts().free, kPages);
}

TEST_F(BlockGraphTest, AForgottenBaseGoesWithItsLastDifference) {
  const BlockId base = Add();
  const BlockId difference = AddDifference(base);
  graph_.Release(base);
  EXPECT_EQ(graph_.counts().blocks, 2u);
  graph_.Release(difference);
  EXPECT_EQ(graph_.counts().blocks, 0u);
  EXPECT_EQ(pool_->Counts().free, kPages);
}

TEST_F(BlockGraphTest, AReparentedBlockFreesTheTwinThatOnlyItNeeded) {
  const std::vector<BlockId> canonical = Chain(1);
  const BlockId twin = Add(), next = Add(twin);
  graph_.Acquire(canonical[0]);
  graph_.Release(twin);
  graph_.Reparent(next, canonical[0]);
  graph_.Validate();
  EXPECT_EQ(graph_.counts().blocks, 2u);
  EXPECT_EQ(graph_[next].parent, canonical[0]);
  graph_.Release(next);
  graph_.Release(canonical[0]);
  EXPECT_EQ(Drain(), canonical);
}

TEST_F(BlockGraphTest, AFloodOfOneOffBlocksLeavesWhatWasUsedTwice) {
  const std::vector<BlockId> hot = Chain(5);
  for (const BlockId id : hot) graph_.CountUse(id);
  for (int flood = 0; flood < 500; ++flood) {
    while (pool_->Counts().free < 5) graph_.Forget(*graph_.Victim());
    Chain(5);
  }
  for (const BlockId id : hot) EXPECT_TRUE(graph_[id].present && graph_[id].times_used == 2);
  EXPECT_EQ(graph_.counts().reused_cached_pages, 5u);
}

TEST_F(BlockGraphTest, ReusedBlocksThatNobodyWantsMakeRoomForNewOnesInTheEnd) {
  for (int i = 0; i < 10; ++i) {
    for (const BlockId id : Chain(4)) graph_.CountUse(id);
  }
  EXPECT_EQ(graph_.counts().reused_cached_pages, kPages);
  graph_.Forget(*graph_.Victim());
  const BlockId fresh = Chain(1)[0];
  // The next victims are old reused blocks, until those that are left are not much older than the
  // new one or hold no more than 35 % of the pages.
  uint64_t gone = 1;
  for (; *graph_.Victim() != fresh; ++gone) graph_.Forget(*graph_.Victim());
  EXPECT_EQ(graph_.counts().reused_cached_pages, kPages - gone);
  EXPECT_LT(kPages - gone, kPages * 8 / 10 + 1);
  EXPECT_GE(kPages - gone, kPages * 35 / 100);
  EXPECT_EQ(*graph_.Victim(), fresh);
}

TEST_F(BlockGraphTest, APinHoldsTheChainBeforeItUntilItExpires) {
  const std::vector<BlockId> chain = Chain(3);
  const TimePoint start{};
  EXPECT_EQ(graph_.CostOfPin(chain[1]), (std::pair<uint64_t, uint64_t>{1, 0}));
  Pin(1, chain[1], start + seconds(10));
  EXPECT_EQ(graph_.CostOfPin(chain[1]), (std::pair<uint64_t, uint64_t>{0, 0}));
  EXPECT_EQ(graph_.CostOfPin(chain[2]), (std::pair<uint64_t, uint64_t>{1, 0}));
  EXPECT_EQ(graph_.counts().evictable_pages, 1u);
  EXPECT_EQ(Drain(), (std::vector<BlockId>{chain[2]}));
  graph_.ExpirePins(start + seconds(9));
  EXPECT_TRUE(Drain().empty());
  Pin(2, chain[0], start + seconds(20));
  EXPECT_EQ(graph_.PinnedUntil()[chain[0]], start + seconds(20));
  EXPECT_EQ(graph_.PinnedUntil()[chain[1]], start + seconds(10));
  graph_.ExpirePins(start + seconds(10));
  EXPECT_EQ(Drain(), (std::vector<BlockId>{chain[1]}));
  graph_.ExpirePins(start + seconds(20));
  EXPECT_EQ(Drain(), (std::vector<BlockId>{chain[0]}));
  EXPECT_TRUE(graph_.PinnedUntil().empty());
}

TEST_F(BlockGraphTest, APinnedDifferenceHoldsItsBase) {
  const BlockId base = Add();
  graph_.Keep(base);
  const BlockId difference = AddDifference(base);
  graph_.Keep(difference);
  graph_.Release(difference);
  graph_.Release(base);
  EXPECT_EQ(graph_.CostOfPin(difference), (std::pair<uint64_t, uint64_t>{1, 1}));
  Pin(1, difference, TimePoint{} + seconds(1));
  EXPECT_EQ(graph_.counts().evictable_pages, 0u);
  EXPECT_EQ(graph_.counts().pinned_fragments, 1u);
  EXPECT_FALSE(graph_.Victim().has_value());
  graph_.UnpinAll();
  EXPECT_EQ(Drain().size(), 2u);
}

TEST_F(BlockGraphTest, EachOfTwoPinsThatShareAPrefixEndsWithoutTheOther) {
  const TimePoint end = TimePoint{} + seconds(9);
  for (const bool longer_first : {false, true}) {
    const std::vector<BlockId> system = Chain(2);
    const std::vector<BlockId> chat = Chain(1, system[1]);
    Pin(1, system[1], end);
    Pin(2, chat[0], end);
    EXPECT_EQ(graph_.counts().pinned_pages, 3u);
    if (longer_first) {
      EXPECT_EQ(graph_.Unpin(Key(2)), kTokens);
      EXPECT_TRUE(Drain() == chat) << "the rest is still pinned";
      EXPECT_EQ(graph_.Unpin(Key(1)), 2 * kTokens);
      EXPECT_EQ(Drain().size(), 2u);
    } else {
      EXPECT_EQ(graph_.Unpin(Key(1)), 0u) << "the chat is pinned, and needs all of it";
      EXPECT_EQ(graph_.counts().pinned_pages, 3u);
      EXPECT_EQ(graph_.Unpin(Key(2)), 3 * kTokens);
      EXPECT_EQ(Drain().size(), 3u);
    }
    EXPECT_EQ(graph_.Unpin(Key(1)), std::nullopt);
    EXPECT_EQ(graph_.counts().pinned_pages, 0u);
    EXPECT_EQ(graph_.num_pins(), 0u);
  }
}

TEST_F(BlockGraphTest, TwoPromptsThatEndInOneBlockHaveAPinEach) {
  const std::vector<BlockId> chain = Chain(2);
  const TimePoint end = TimePoint{} + seconds(9);
  graph_.Pin(Key(1), {chain[1], kTokens + 2, end});
  graph_.Pin(Key(2), {chain[1], kTokens + 5, end});
  EXPECT_EQ(graph_.Unpin(Key(2)), 0u);
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(graph_.Unpin(Key(1)), kTokens + 2);
  EXPECT_EQ(Drain().size(), 2u);
}

TEST_F(BlockGraphTest, UnpinningADifferenceLetsItsBaseGoUnlessThatIsPinnedItself) {
  for (const bool base_too : {false, true}) {
    const BlockId base = Add();
    graph_.Keep(base);
    const BlockId difference = AddDifference(base);
    graph_.Keep(difference);
    graph_.Release(difference);
    graph_.Release(base);
    if (base_too) Pin(1, base, TimePoint{} + seconds(1));
    Pin(2, difference, TimePoint{} + seconds(2));
    EXPECT_EQ(graph_.Unpin(Key(2)), kTokens);
    EXPECT_EQ(graph_.counts().pinned_pages, base_too ? 1u : 0u);
    graph_.ExpirePins(TimePoint{} + seconds(2));
    EXPECT_EQ(Drain().size(), 2u);
  }
}

TEST_F(BlockGraphTest, OfAPinnedBlockThatIsForgottenTheParentStaysPinned) {
  const std::vector<BlockId> chain = Chain(2);
  Pin(1, chain[1], TimePoint{} + seconds(9));
  graph_.Forget(chain[1]);
  graph_.Validate();
  EXPECT_EQ(graph_.counts().blocks, 1u);
  EXPECT_TRUE(Drain().empty());
  EXPECT_EQ(graph_.Unpin(Key(1)), kTokens);
  EXPECT_EQ(Drain().size(), 1u);
  const BlockId alone = Chain(1).front();
  Pin(1, alone, TimePoint{} + seconds(9));
  graph_.Forget(alone);
  EXPECT_EQ(graph_.num_pins(), 0u);
}

TEST_F(BlockGraphTest, PagesWithTwoUsersAreSharedAndEveryBlockHasASerialOfItsOwn) {
  const BlockId base = Add();
  graph_.SetNow(TimePoint{} + seconds(5));
  const BlockId difference = AddDifference(base);  // its user reads the base, too
  EXPECT_EQ(graph_.counts().shared_pages, 1u);
  EXPECT_EQ(graph_[base].made, TimePoint{});
  EXPECT_EQ(graph_[difference].made, TimePoint{} + seconds(5));
  const uint64_t serial = graph_[difference].serial;
  EXPECT_GT(serial, graph_[base].serial);
  graph_.Release(difference);
  EXPECT_EQ(graph_.counts().shared_pages, 0u);
  const BlockId next = Add();
  EXPECT_EQ(next, difference) << "the number is used again";
  EXPECT_GT(graph_[next].serial, serial);
}

TEST_F(BlockGraphTest, AnOwnersVictimsAreItsOwnInItsOwnOrder) {
  std::vector<BlockId> of[2];
  for (int i = 0; i < 4; ++i) {
    for (const OwnerId owner : {1u, 2u}) {
      const BlockId id = graph_.Add(pool_->AllocatePage().value(), kNoBlock, 0, owner);
      graph_.Keep(id);
      graph_.Release(id);
      of[owner - 1].push_back(id);
    }
  }
  graph_.Limit(2, 10);  // what is there already counts as well
  EXPECT_EQ(graph_.CountsOf(2).evictable_pages, 4u);
  graph_.Acquire(of[1][1]);
  for (const size_t next : {0u, 2u, 3u}) {
    ASSERT_EQ(graph_.VictimOf(2), of[1][next]);
    graph_.Forget(of[1][next]);
    graph_.Validate();
  }
  EXPECT_EQ(graph_.VictimOf(2), std::nullopt);  // the last one is used
  graph_.Release(of[1][1]);
  EXPECT_EQ(graph_.VictimOf(2), of[1][1]);
  EXPECT_EQ(graph_.Victim(), of[0][0]);
  EXPECT_EQ(graph_.CountsOf(1).pages, 4u);
}

TEST_F(BlockGraphTest, ALimitThatIsSetAnewOrdersWhatIsThereAndWithoutOneNothingIs) {
  EXPECT_EQ(graph_.CountsOf(7), OwnerCounts());  // nobody has heard of it
  const auto add = [this](OwnerId owner) {
    const BlockId id = graph_.Add(pool_->AllocatePage().value(), kNoBlock, 0, owner);
    graph_.Keep(id);
    graph_.Release(id);
    return id;
  };
  const BlockId gone = add(2), other = add(1), used = add(2), idle = add(2);
  graph_.Forget(gone);
  graph_.Acquire(used);
  graph_.Limit(2, 3);
  EXPECT_EQ(graph_.VictimOf(2), idle);
  graph_.Release(used);
  graph_.Limit(2, 5);
  graph_.Validate();
  EXPECT_EQ(graph_.VictimOf(2), idle) << "the other was used last";
  graph_.Limit(2, 0);
  graph_.Validate();
  EXPECT_EQ(graph_.CountsOf(2).evictable_pages, 2u);
  EXPECT_EQ(Drain(), (std::vector<BlockId>{other, idle, used}));
}

}  // namespace
}  // namespace kvlink::cache
