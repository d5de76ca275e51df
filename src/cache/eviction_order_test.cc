#include "cache/eviction_order.h"

#include <gtest/gtest.h>

namespace kvlink::cache {
namespace {

constexpr uint32_t kTokens = 32;
constexpr uint64_t kPages = 100;

struct Candidate {
  uint32_t rows = kTokens, depth = 0, times_used = 1;
  uint64_t last_use = 1000;
};

// The order in which candidates 0, 1, ... go.
std::vector<BlockId> OrderOf(const std::vector<Candidate>& candidates, uint64_t reused_pages = 0) {
  EvictionOrder order(kTokens, kPages);
  const auto key = [&](BlockId id) {
    const Candidate& c = candidates[id];
    return order.KeyOf(id, c.rows, c.depth, c.times_used, c.last_use);
  };
  for (BlockId id = 0; id < candidates.size(); ++id) order.Add(key(id));
  std::vector<BlockId> result;
  while (const auto first = order.First(reused_pages)) {
    result.push_back(*first);
    order.Remove(key(*first));
  }
  EXPECT_EQ(order.size(), 0u);
  return result;
}

TEST(EvictionOrder, OfEqualBlocksTheLeastRecentlyUsedGoesFirst) {
  EXPECT_EQ(OrderOf({{.last_use = 7}, {.last_use = 5}, {.last_use = 6}}),
            (std::vector<BlockId>{1, 2, 0}));
}

TEST(EvictionOrder, ABlockSeenOnceGoesBeforeAnOlderOneSeenTwice) {
  EXPECT_EQ(OrderOf({{.times_used = 2, .last_use = 1}, {.times_used = 1, .last_use = 999999}}),
            (std::vector<BlockId>{1, 0}));
}

TEST(EvictionOrder, AnEqualNumberOfUsesAboveTwoDoesNotOutweighRecency) {
  EXPECT_EQ(OrderOf({{.times_used = 50, .last_use = 1}, {.times_used = 2, .last_use = 2}}),
            (std::vector<BlockId>{0, 1}));
}

TEST(EvictionOrder, ReusedBlocksThatFillTheCacheGoFirstSoThatNewOnesCanBeSeenTwice) {
  const std::vector<Candidate> candidates = {{.times_used = 2}, {.times_used = 1}};
  EXPECT_EQ(OrderOf(candidates, 80), (std::vector<BlockId>{1, 0}));
  EXPECT_EQ(OrderOf(candidates, 81), (std::vector<BlockId>{0, 1}));
}

TEST(EvictionOrder, AboveTheProtectedShareTheOlderOfReusedAndOnceUsedGoesFirst) {
  // Reused blocks count as younger by a tick a page.
  const std::vector<Candidate> candidates = {{.times_used = 2, .last_use = 1000},
                                             {.times_used = 1, .last_use = 1001 + kPages},
                                             {.times_used = 1, .last_use = 1000 + kPages}};
  EXPECT_EQ(OrderOf(candidates, 35), (std::vector<BlockId>{2, 1, 0}));
  EXPECT_EQ(OrderOf(candidates, 36), (std::vector<BlockId>{2, 0, 1}));
}

TEST(EvictionOrder, ACheapBlockGoesBeforeADearOneOfTheSameAge) {
  // By depth: block 200 stands at position 6,400, its rows attend to that many.
  EXPECT_EQ(OrderOf({{.depth = 200}, {.depth = 0}}), (std::vector<BlockId>{1, 0}));
  // By rows: a tail of two rows saves little and holds a whole page.
  EXPECT_EQ(OrderOf({{.rows = kTokens}, {.rows = 2}}), (std::vector<BlockId>{1, 0}));
}

TEST(EvictionOrder, ADearBlockThatNobodyWantsAgesOut) {
  EXPECT_EQ(
      OrderOf({{.depth = 200, .last_use = 1000}, {.depth = 0, .last_use = 1000 + 2 * kPages}}),
      (std::vector<BlockId>{0, 1}));
}

TEST(EvictionOrder, OfEqualsTheDeeperGoesFirst) {
  // Both are above the most that depth adds, so that age and worth are equal.
  EXPECT_EQ(OrderOf({{.depth = 4000}, {.depth = 5000}}), (std::vector<BlockId>{1, 0}));
}

}  // namespace
}  // namespace kvlink::cache
