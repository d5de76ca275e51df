#include "events/event_queue.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvlink::events {
namespace {

Event Numbered(uint64_t number) { return {.kind = Event::Kind::kRemoved, .hash = {number, 0}}; }

TEST(EventQueue, GivesEventsInTheirOrderInBatches) {
  EventQueue queue(10);
  EXPECT_TRUE(queue.Put(Numbered(0)));
  EXPECT_FALSE(queue.Put(Numbered(1)));
  EXPECT_FALSE(queue.Put(Numbered(2)));
  EXPECT_EQ(queue.Take(2).events.size(), 2u);
  const auto rest = queue.Take(2);
  ASSERT_EQ(rest.events.size(), 1u);
  EXPECT_EQ(rest.events[0].hash.lo, 2u);
  EXPECT_TRUE(queue.Take(2).empty());
  EXPECT_TRUE(queue.Put(Numbered(3)));
}

TEST(EventQueue, FullItDropsWhatComesAndSaysWhere) {
  EventQueue queue(2);
  for (uint64_t i = 0; i < 5; ++i) queue.Put(Numbered(i));  // 2, 3 and 4 are lost
  EXPECT_EQ(queue.dropped(), 3u);
  EXPECT_EQ(queue.Take(1).events[0].hash.lo, 0u);
  queue.Put(Numbered(5));
  const auto before = queue.Take(10);
  ASSERT_EQ(before.events.size(), 1u);
  EXPECT_EQ(before.events[0].hash.lo, 1u);
  EXPECT_EQ(before.dropped_before, 0u);
  const auto after = queue.Take(10);
  ASSERT_EQ(after.events.size(), 1u);
  EXPECT_EQ(after.events[0].hash.lo, 5u);
  EXPECT_EQ(after.dropped_before, 3u);
}

TEST(EventQueue, SaysOfADropThoughNothingComesAfter) {
  EventQueue queue(1);
  queue.Put(Numbered(0));
  queue.Put(Numbered(1));
  EXPECT_EQ(queue.Take(10).dropped_before, 0u);
  EXPECT_EQ(queue.Take(10).dropped_before, 1u);
  EXPECT_TRUE(queue.Take(10).empty());
}

TEST(EventQueue, EveryEventIsTakenInOrderOrCountedAsDroppedInItsPlace) {
  base::Random random(3);
  EventQueue queue(7);
  uint64_t put = 0, seen = 0, dropped = 0;
  for (int step = 0; step < 20000; ++step) {
    if (!random.OneIn(4)) {
      queue.Put(Numbered(put++));
      continue;
    }
    const auto batch = queue.Take(1 + random.Below(5));
    seen += batch.dropped_before;
    dropped += batch.dropped_before;
    for (const Event& event : batch.events) ASSERT_EQ(event.hash.lo, seen++);
  }
  for (auto batch = queue.Take(5); !batch.empty(); batch = queue.Take(5)) {
    seen += batch.dropped_before + batch.events.size();
    dropped += batch.dropped_before;
  }
  EXPECT_EQ(seen, put);
  EXPECT_EQ(dropped, queue.dropped());
  EXPECT_GT(dropped, 0u);
}

}  // namespace
}  // namespace kvlink::events
