#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/random.h"
#include "match/evicted_keys.h"
#include "match/in_flight_table.h"

namespace kvlink::match {
namespace {

BlockKey Key(uint64_t i) { return base::Hash128("key " + std::to_string(i)); }

TEST(EvictedKeys, KnowsWhatWasJustAddedAndNothingElse) {
  EvictedKeys evicted(1024);
  for (uint64_t i = 0; i < 10000; ++i) {
    EXPECT_FALSE(evicted.Contains(Key(i)));
    evicted.Add(Key(i));
    EXPECT_TRUE(evicted.Contains(Key(i)));
  }
}

TEST(EvictedKeys, RemembersMostOfTheNewestAndForgetsTheOld) {
  EvictedKeys evicted(1024);
  for (uint64_t i = 0; i < 10000; ++i) evicted.Add(Key(i));
  int newest = 0, old = 0;
  for (uint64_t i = 9500; i < 10000; ++i) newest += evicted.Contains(Key(i)) ? 1 : 0;
  for (uint64_t i = 0; i < 5000; ++i) old += evicted.Contains(Key(i)) ? 1 : 0;
  EXPECT_GT(newest, 450);
  EXPECT_LT(old, 50);
}

TEST(EvictedKeys, AddingAgainKeepsTheOthersOfTheSet) {
  EvictedKeys evicted(4);  // one set
  for (uint64_t i = 0; i < 4; ++i) evicted.Add(Key(i));
  for (int again = 0; again < 10; ++again) evicted.Add(Key(0));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(evicted.Contains(Key(i))) << i;
  evicted.Add(Key(4));  // the oldest is now 1
  EXPECT_FALSE(evicted.Contains(Key(1)));
  EXPECT_TRUE(evicted.Contains(Key(0)));
}

TEST(EvictedKeys, TakesAKeyOfZerosAndForgetsAllOnClear) {
  EvictedKeys evicted(16);
  EXPECT_FALSE(evicted.Contains(BlockKey{}));
  evicted.Add(BlockKey{});
  EXPECT_TRUE(evicted.Contains(BlockKey{}));
  evicted.Clear();
  EXPECT_FALSE(evicted.Contains(BlockKey{}));
  EXPECT_EQ(evicted.tracking_bytes(), 16 * 8u);
}

TEST(InFlightTable, TellsWhoComputesABlock) {
  InFlightTable table;
  EXPECT_EQ(table.LeaderOf(Key(1)), std::nullopt);
  table.Announce(Key(1), 7);
  EXPECT_EQ(table.LeaderOf(Key(1)), 7u);
  EXPECT_TRUE(table.IsComputing(Key(1), 7));
  EXPECT_FALSE(table.IsComputing(Key(1), 8));
  EXPECT_FALSE(table.IsComputing(Key(2), 7));
  table.Retire(Key(1), 7);
  EXPECT_EQ(table.LeaderOf(Key(1)), std::nullopt);
}

TEST(InFlightTable, TheNextLeaderTakesOverWhenTheFirstGoesAway) {
  InFlightTable table;
  table.Announce(Key(1), 7);
  table.Announce(Key(1), 8);
  EXPECT_EQ(table.LeaderOf(Key(1)), 7u);
  table.RetireAll(7);
  EXPECT_EQ(table.LeaderOf(Key(1)), 8u);
}

TEST(InFlightTable, AnnouncingTwiceIsAnnouncingOnce) {
  InFlightTable table;
  table.Announce(Key(1), 7);
  table.Announce(Key(1), 7);
  table.Retire(Key(1), 7);
  EXPECT_EQ(table.num_keys(), 0u);
}

TEST(InFlightTable, DoesWhatAListOfAnnouncementsDoes) {
  InFlightTable table;
  std::vector<std::pair<BlockKey, uint64_t>> naive;
  base::Random random(5);
  for (int step = 0; step < 20000; ++step) {
    const BlockKey key = Key(random.Below(20));
    const uint64_t leader = random.Below(6);
    const auto mine = std::pair(key, leader);
    switch (random.Below(5)) {
      case 0:
      case 1:
        table.Announce(key, leader);
        if (std::ranges::find(naive, mine) == naive.end()) naive.push_back(mine);
        break;
      case 2:
      case 3:
        table.Retire(key, leader);
        std::erase(naive, mine);
        break;
      default:
        table.RetireAll(leader);
        std::erase_if(naive, [&](const auto& entry) { return entry.second == leader; });
    }
    for (uint64_t i = 0; i < 20; ++i) {
      const auto first = std::ranges::find(naive, Key(i), &std::pair<BlockKey, uint64_t>::first);
      ASSERT_EQ(table.LeaderOf(Key(i)),
                first == naive.end() ? std::nullopt : std::optional(first->second));
    }
    ASSERT_EQ(table.IsComputing(key, leader), std::ranges::find(naive, mine) != naive.end());
  }
  for (uint64_t leader = 0; leader < 6; ++leader) table.RetireAll(leader);
  EXPECT_EQ(table.num_keys(), 0u);
}

}  // namespace
}  // namespace kvlink::match
