#include "tier/eviction_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/random.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

std::vector<BlockKey> EvictAll(EvictionIndex& index) {
  std::vector<BlockKey> order;
  while (const auto next = index.Next()) {
    order.push_back(*next);
    index.Evict(*next);
  }
  return order;
}

TEST(EvictionIndex, ChildrenGoBeforeTheirParent) {
  EvictionIndex index;
  const BlockKey a = NumberedKey(1), b = NumberedKey(2), c = NumberedKey(3);
  index.Insert(a, {}, 10, 0);  // worth least
  index.Insert(b, a, 10, 100);
  index.Insert(c, b, 10, 1000);
  EXPECT_EQ(EvictAll(index), (std::vector<BlockKey>{c, b, a}));
  EXPECT_EQ(index.bytes(), 0u);
}

TEST(EvictionIndex, DearAndUsedBlocksStayLonger) {
  EvictionIndex index;
  const BlockKey cheap = NumberedKey(1), dear = NumberedKey(2), used = NumberedKey(3),
                 bulky = NumberedKey(4);
  index.Insert(dear, {}, 10, 1000);
  index.Insert(used, {}, 10, 100);
  index.Insert(cheap, {}, 10, 100);
  index.Insert(bulky, {}, 1000, 1000);
  for (int i = 0; i < 20; ++i) index.Touch(used);
  EXPECT_EQ(EvictAll(index), (std::vector<BlockKey>{bulky, cheap, dear, used}));
}

TEST(EvictionIndex, WhatNobodyAsksForAgesEvenWhenDear) {
  EvictionIndex index;
  const BlockKey dear = NumberedKey(0);
  index.Insert(dear, {}, 10, 100);
  bool gone = false;
  for (uint64_t n = 1; n < 100 && !gone; ++n) {  // a stream of cheaper blocks, of which two fit
    index.Insert(NumberedKey(n), {}, 10, 20);
    const BlockKey next = *index.Next();
    index.Evict(next);
    gone = next == dear;
  }
  EXPECT_TRUE(gone);
}

TEST(EvictionIndex, ABlockWithoutItsParentGoesFirstUntilTheParentIsBack) {
  EvictionIndex index;
  const BlockKey parent = NumberedKey(1), child = NumberedKey(2), other = NumberedKey(3);
  index.Insert(parent, {}, 10, 1);
  index.Insert(child, parent, 10, 1000);
  index.Insert(other, {}, 10, 10);
  index.Erase(parent);  // it was damaged
  EXPECT_EQ(index.num_unreachable(), 1u);
  EXPECT_EQ(*index.Next(), child);
  index.Insert(parent, {}, 10, 1);
  EXPECT_EQ(index.num_unreachable(), 0u);
  EXPECT_EQ(*index.Next(), other);
}

TEST(EvictionIndex, RestoredBlocksKeepTheirOrderAndNewOnesAreNotWorthLess) {
  EvictionIndex before;
  for (uint64_t n = 0; n < 8; ++n) before.Insert(NumberedKey(n), {}, 10, 100);
  for (uint64_t n = 0; n < 50; ++n) {  // the floor rises
    before.Insert(NumberedKey(100 + n), {}, 10, 100);
    before.Evict(*before.Next());
  }
  for (uint64_t n = 145; n < 150; ++n) before.Touch(NumberedKey(n));
  EvictionIndex after;
  before.ForEach(
      [&after](const BlockKey& key, const EvictionEntry& entry) { after.Restore(key, entry); });
  after.EndRestore();
  EXPECT_EQ(after.size(), before.size());
  EXPECT_EQ(after.bytes(), before.bytes());
  after.Insert(NumberedKey(1000), {}, 10, 100);
  EXPECT_NE(*after.Next(), NumberedKey(1000));
  after.Erase(NumberedKey(1000));
  const std::vector<BlockKey> order = EvictAll(after);
  for (size_t i = order.size() - 5; i < order.size(); ++i) {
    EXPECT_GT(before.Find(order[i])->uses, 1u) << "used ones go last";
  }
}

TEST(EvictionIndex, WorthFromADeviceThatIsNoNumberIsNone) {
  EvictionIndex index;
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  const double kInfinity = std::numeric_limits<double>::infinity();
  uint64_t n = 0;
  for (const double value : {kNan, kInfinity, -kInfinity, -1.0, 5.0, kNan, kNan, 2.0}) {
    index.Restore(NumberedKey(n++), EvictionEntry{{}, 10, value, value, 1});
  }
  index.EndRestore();
  for (uint64_t used = 0; used < n; ++used) index.Touch(NumberedKey(used));
  index.Insert(NumberedKey(n++), {}, 10, 1);
  EXPECT_EQ(EvictAll(index).size(), n);
  EXPECT_EQ(index.size(), 0u);
}

TEST(EvictionIndex, BytesFromADeviceThatFormACycleAreEvictedAsWell) {
  EvictionIndex index;
  const BlockKey a = NumberedKey(1), b = NumberedKey(2), self = NumberedKey(3);
  index.Restore(a, {b, 10, 1, 1, 1});
  index.Restore(b, {a, 10, 1, 1, 1});
  index.Restore(self, {self, 10, 1, 1, 1});
  index.EndRestore();
  EXPECT_EQ(EvictAll(index).size(), 3u);
  EXPECT_EQ(index.bytes(), 0u);
  EXPECT_EQ(index.num_unreachable(), 0u);
}

// The same, by looking at everything.
struct NaiveIndex {
  struct Node {
    BlockKey parent;
    uint64_t bytes = 0;
  };
  std::map<BlockKey, Node> nodes;

  bool Leaf(const BlockKey& key) const {
    return std::ranges::none_of(nodes, [&](const auto& n) { return n.second.parent == key; });
  }
  bool Reachable(const Node& node) const {
    return node.parent == BlockKey{} || nodes.contains(node.parent);
  }
  uint64_t Bytes() const {
    uint64_t sum = 0;
    for (const auto& [key, node] : nodes) sum += node.bytes;
    return sum;
  }
  uint64_t Unreachable() const {
    return static_cast<uint64_t>(
        std::ranges::count_if(nodes, [&](const auto& n) { return !Reachable(n.second); }));
  }
};

TEST(EvictionIndex, AgreesWithANaiveOneOverRandomOperations) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    base::Random random(seed);
    EvictionIndex index;
    NaiveIndex naive;
    for (int step = 0; step < 3000; ++step) {
      const uint64_t n = 1 + random.Below(60);
      const BlockKey key = NumberedKey(n);
      const uint64_t what = random.Below(10);
      if (what < 5) {
        // Parents have smaller numbers, as in chains; often they are not here.
        const BlockKey parent = random.OneIn(3) ? BlockKey{} : NumberedKey(random.Below(n));
        const uint64_t bytes = 1 + random.Below(100);
        index.Insert(key, parent, bytes, static_cast<double>(random.Below(1000)));
        naive.nodes[key] = {parent, bytes};
      } else if (what < 7) {
        index.Touch(key);
      } else if (what < 8) {
        index.Erase(key);
        naive.nodes.erase(key);
      } else if (const auto next = index.Next()) {
        ASSERT_TRUE(naive.nodes.contains(*next));
        ASSERT_TRUE(naive.Leaf(*next)) << "step " << step;
        const bool unreachable_leaf = std::ranges::any_of(naive.nodes, [&](const auto& node) {
          return naive.Leaf(node.first) && !naive.Reachable(node.second);
        });
        if (unreachable_leaf) {
          ASSERT_FALSE(naive.Reachable(naive.nodes[*next]));
        }
        index.Evict(*next);
        naive.nodes.erase(*next);
      }
      ASSERT_EQ(index.size(), naive.nodes.size());
      ASSERT_EQ(index.bytes(), naive.Bytes());
      ASSERT_EQ(index.num_unreachable(), naive.Unreachable()) << "step " << step;
      ASSERT_EQ(index.Next().has_value(), !naive.nodes.empty());
    }
  }
}

}  // namespace
}  // namespace kvlink::tier
