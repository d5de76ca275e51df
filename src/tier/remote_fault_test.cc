// A store on a real Redis that is absent, stopped, killed, frozen, slow, or holds rubbish.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tier/remote_tier.h"
#include "tier/testing/redis_process.h"
#include "tier/tier_files.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

using std::chrono::milliseconds;

class RemoteFault : public ::testing::Test {
 protected:
  RemoteFault() {
    options_.model_fingerprint = "model";
    options_.load_timeout = milliseconds(200);
    options_.store_timeout = milliseconds(200);
    options_.ping_timeout = milliseconds(200);
    options_.breaker = {3, milliseconds(20), milliseconds(100)};
  }
  std::unique_ptr<TierStore> Open(RemoteTierOptions remote) {
    remote.connect_timeout = milliseconds(150);
    std::vector<std::unique_ptr<BlockTier>> tiers;
    tiers.push_back(std::move(*OpenRemoteTier(remote)));
    return TierStore::Create(options_, std::move(tiers));
  }
  static void PutAll(TierStore& store, uint64_t count) {
    for (uint64_t n = 0; n < count; ++n) store.Put(NumberedBlock(n, 20000).put);
    ASSERT_TRUE(store.Drain(Soon()));
  }
  // Loads blocks [0, count); what is loaded is right. The number loaded.
  static uint32_t LoadAll(TierStore& store, uint64_t count, TimePoint deadline = Soon()) {
    std::vector<std::unique_ptr<NumberedBlock>> blocks;
    std::vector<Want> wants;
    for (uint64_t n = 0; n < count; ++n) {
      blocks.push_back(std::make_unique<NumberedBlock>(n, 20000));
      wants.push_back({blocks.back()->put.name, {}});
    }
    const auto ticket = store.Load(wants, deadline, {});
    EXPECT_TRUE(ticket->WaitUntil(Soon())) << "a load must end, whatever the peer does";
    uint32_t loaded = 0;
    for (uint64_t n = 0; n < count; ++n) {
      const LoadResult result = ticket->TakeResult(n);
      if (!result.loaded()) continue;
      ++loaded;
      EXPECT_EQ(result.payload, blocks[n]->payload);
    }
    return loaded;
  }
  static bool Recovers(TierStore& store) {
    return Eventually([&store] { return store.Stats(0).breaker == BreakerState::kClosed; });
  }
  static uint64_t Errors(TierStore& store, TierOp op, ErrorReason reason) {
    return store.Stats(0).errors[static_cast<size_t>(op)][static_cast<size_t>(reason)];
  }

  TierStoreOptions options_;
};

TEST_F(RemoteFault, TheStoreStartsWithoutRedisAndTakesItInWhenItComes) {
  RedisProcess redis;
  redis.Stop();
  const auto store = Open(redis.options());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LoadAll(*store, 2), 0u);
  EXPECT_NE(store->Stats(0).breaker, BreakerState::kClosed);
  EXPECT_GT(Errors(*store, TierOp::kGet, ErrorReason::kUnavailable), 0u);
  EXPECT_NE(store->Stats(0).last_error, "");
  redis.Start();
  ASSERT_TRUE(Recovers(*store));
  PutAll(*store, 4);
  EXPECT_EQ(LoadAll(*store, 4), 4u);
}

TEST_F(RemoteFault, AStoppedAndRestartedRedisIsUsedAgainWithoutAnError) {
  RedisProcess redis;
  const auto store = Open(redis.options());
  PutAll(*store, 4);
  EXPECT_EQ(LoadAll(*store, 4), 4u);
  redis.Kill();
  redis.Start();  // empty, and our connections are stale
  EXPECT_EQ(LoadAll(*store, 4), 0u);
  EXPECT_EQ(store->Stats(0).num_errors(), 0u);
  PutAll(*store, 4);
  EXPECT_EQ(LoadAll(*store, 4), 4u);
}

TEST_F(RemoteFault, AKilledRedisIsCutOff) {
  RedisProcess redis;
  const auto store = Open(redis.options());
  PutAll(*store, 4);
  redis.Kill();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(LoadAll(*store, 4), 0u);
  EXPECT_NE(store->Stats(0).breaker, BreakerState::kClosed);
  EXPECT_EQ(store->Find(NumberedKey(0)).present, 0u);
  EXPECT_FALSE(store->Put(NumberedBlock(77).put));
}

TEST_F(RemoteFault, AFrozenRedisTimesOutIsCutOffAndComesBackWithItsBlocks) {
  RedisProcess redis;
  const auto store = Open(redis.options());
  PutAll(*store, 4);
  redis.Freeze();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(LoadAll(*store, 4, In(milliseconds(100))), 0u);
  EXPECT_GT(Errors(*store, TierOp::kGet, ErrorReason::kTimeout), 0u);
  EXPECT_NE(store->Stats(0).breaker, BreakerState::kClosed);
  EXPECT_GT(Errors(*store, TierOp::kGet, ErrorReason::kBreaker) + store->Stats(0).breaker_openings,
            0u);
  redis.Thaw();
  ASSERT_TRUE(Recovers(*store));
  EXPECT_EQ(LoadAll(*store, 4), 4u);
}

TEST_F(RemoteFault, FrozenWhileWritingDropsWithCountsAndBlocksNobody) {
  RedisProcess redis;
  options_.queue_bytes = 1 << 20;
  const auto store = Open(redis.options());
  PutAll(*store, 1);
  redis.Freeze();
  for (uint64_t n = 1; n < 300; ++n) store->Put(NumberedBlock(n, 20000).put);
  EXPECT_LE(store->Stats(0).queued_bytes, options_.queue_bytes);
  EXPECT_GT(store->Stats(0).queue_drops, 0u);
  ASSERT_TRUE(Eventually([&] { return store->Stats(0).breaker != BreakerState::kClosed; }));
  redis.Thaw();
  ASSERT_TRUE(Recovers(*store));
  ASSERT_TRUE(Eventually([&] { return store->Drain(Soon()); }));
  for (uint64_t n = 1000; n < 1004; ++n) EXPECT_TRUE(store->Put(NumberedBlock(n).put));
}

TEST_F(RemoteFault, ASlowRedisGivesWhatComesInTimeAndNeverHoldsALoad) {
  const RedisProcess redis;
  PutAll(*Open(redis.options()), 4);
  const SlowProxy proxy(redis.port(), milliseconds(200));
  RemoteTierOptions options = redis.options();
  options.endpoints[0].port = proxy.port();
  const auto store = Open(options);  // connects in 150 ms or not at all
  EXPECT_EQ(LoadAll(*store, 4, In(milliseconds(50))), 0u);
  for (int i = 0; i < 4; ++i) LoadAll(*store, 4, In(milliseconds(100)));
  EXPECT_NE(store->Stats(0).breaker, BreakerState::kClosed);
}

TEST_F(RemoteFault, AFlippedByteInAValueIsAMissAndACounterAndTheBlockCanBeStoredAgain) {
  const RedisProcess redis;
  const auto store = Open(redis.options());
  PutAll(*store, 3);
  const std::string name = "kvlink:1:" + HexOfKey(NumberedKey(1));
  for (const char* offset : {"0", "5", "50", "130", "10000", "20147"}) {
    const RedisReply before = redis.Run({"GETRANGE", name, offset, offset});
    const std::string other(1, static_cast<char>(before.text.at(0) ^ 0x10));
    redis.Run({"SETRANGE", name, offset, other});
    EXPECT_EQ(LoadAll(*store, 3), 2u) << "byte " << offset;
    ASSERT_TRUE(Eventually([&] {  // it is removed there, unless it looks like another version's
      store->Put(NumberedBlock(1, 20000).put);
      return store->Drain(Soon()) && LoadAll(*store, 3) == 3;
    }));
  }
  EXPECT_GE(Errors(*store, TierOp::kGet, ErrorReason::kCorrupt) +
                Errors(*store, TierOp::kGet, ErrorReason::kForeign),
            6u);
  redis.Run({"SET", name, "rubbish"});
  EXPECT_EQ(LoadAll(*store, 3), 2u);
  redis.Run({"DEL", name});
  redis.Run({"LPUSH", name, "not a string"});
  EXPECT_EQ(LoadAll(*store, 3), 2u);
}

TEST_F(RemoteFault, TwoStoresShareAndModelsDoNot) {
  const RedisProcess redis;
  const auto a = Open(redis.options());
  PutAll(*a, 4);
  const auto b = Open(redis.options());
  EXPECT_EQ(b->Find(NumberedKey(2)).unknown, 1u);
  std::atomic<bool> done{false};
  const std::vector<BlockKey> keys = {NumberedKey(2), NumberedKey(50)};
  b->Probe(keys, [&done] { done = true; });
  ASSERT_TRUE(Eventually([&done] { return done.load(); }));
  EXPECT_EQ(b->Find(NumberedKey(2)).present, 1u);
  EXPECT_EQ(b->Find(NumberedKey(50)).present, 0u);
  EXPECT_EQ(LoadAll(*b, 4), 4u);
  EXPECT_EQ(b->Stats(0).hits, 4u);

  options_.model_fingerprint = "another model";
  const auto c = Open(redis.options());
  EXPECT_EQ(LoadAll(*c, 4), 0u);
  EXPECT_EQ(Errors(*c, TierOp::kGet, ErrorReason::kForeign), 4u);
  EXPECT_EQ(LoadAll(*a, 4), 4u) << "they are still there";
}

}  // namespace
}  // namespace kvlink::tier
