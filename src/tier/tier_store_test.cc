#include "tier/tier_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tier/memory_tier.h"
#include "tier/testing/fault_tier.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

using std::chrono::milliseconds;

// A store of a memory tier ("disk") and a faulty one behind it ("net"), or of the faulty one alone.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    options_.model_fingerprint = "model";
    options_.load_timeout = milliseconds(60);
    options_.store_timeout = milliseconds(60);
    options_.ping_timeout = milliseconds(60);
    options_.breaker = {3, milliseconds(20), milliseconds(50)};
  }
  void OpenFaultyOnly() {
    auto net = std::make_unique<FaultTier>(std::make_unique<MemoryTier>(1 << 24), 7);
    net_ = net.get();
    std::vector<std::unique_ptr<BlockTier>> tiers;
    tiers.push_back(std::move(net));
    store_ = TierStore::Create(options_, std::move(tiers));
  }
  void OpenBoth(uint64_t disk_bytes = 1 << 24) {
    auto disk = std::make_unique<MemoryTier>(disk_bytes, "disk");
    auto net = std::make_unique<FaultTier>(std::make_unique<MemoryTier>(1 << 24), 7);
    disk_ = disk.get();
    net_ = net.get();
    std::vector<std::unique_ptr<BlockTier>> tiers;
    tiers.push_back(std::move(disk));
    tiers.push_back(std::move(net));
    store_ = TierStore::Create(options_, std::move(tiers));
  }

  bool Put(uint64_t n) { return store_->Put(NumberedBlock(n).put); }
  void PutAll(uint64_t count) {
    for (uint64_t n = 0; n < count; ++n) ASSERT_TRUE(Put(n));
    ASSERT_TRUE(store_->Drain(Soon()));
  }
  // Loads blocks [0, count); checks that what is loaded is right, and gives the results.
  std::vector<LoadResult> LoadAll(uint64_t count, TimePoint deadline = Soon()) {
    std::vector<std::unique_ptr<NumberedBlock>> blocks;
    std::vector<Want> wants;
    for (uint64_t n = 0; n < count; ++n) {
      blocks.push_back(std::make_unique<NumberedBlock>(n));
      wants.push_back({blocks.back()->put.name, {}});
    }
    std::atomic<int> callbacks{0};
    const auto ticket = store_->Load(wants, deadline, [&callbacks] { ++callbacks; });
    EXPECT_TRUE(ticket->WaitUntil(Soon()));
    EXPECT_TRUE(Eventually([&callbacks] { return callbacks == 1; }));
    ticket->Cancel();
    std::vector<LoadResult> results;
    for (uint64_t n = 0; n < count; ++n) {
      results.push_back(ticket->TakeResult(n));
      if (results[n].loaded()) {
        EXPECT_EQ(results[n].payload, blocks[n]->payload);
      }
    }
    return results;
  }
  static size_t NumLoaded(const std::vector<LoadResult>& results) {
    return static_cast<size_t>(
        std::ranges::count_if(results, [](const LoadResult& r) { return r.loaded(); }));
  }
  uint64_t Errors(uint32_t tier, TierOp op, ErrorReason reason) {
    return store_->Stats(tier).errors[static_cast<size_t>(op)][static_cast<size_t>(reason)];
  }
  void Probe(std::vector<BlockKey> keys) {
    std::atomic<bool> done{false};
    store_->Probe(keys, [&done] { done = true; });
    ASSERT_TRUE(Eventually([&done] { return done.load(); }));
  }

  TierStoreOptions options_;
  MemoryTier* disk_ = nullptr;  // of the store
  FaultTier* net_ = nullptr;    // of the store
  base::FakeClock pace_clock_;
  std::unique_ptr<TierStore> store_;
};

TEST_F(StoreTest, WhatIsPutIsFoundAndLoadedBitEqual) {
  OpenBoth();
  EXPECT_EQ(store_->Find(NumberedKey(0)).present, 0u);
  PutAll(40);
  for (uint64_t n = 0; n < 40; ++n) EXPECT_EQ(store_->Find(NumberedKey(n)).present, 3u);
  EXPECT_EQ(NumLoaded(LoadAll(40)), 40u);
  const TierStats stats = store_->Stats(0);
  EXPECT_EQ(stats.name, "disk");
  EXPECT_EQ(stats.hits, 40u);
  EXPECT_EQ(stats.stored, 40u);
  EXPECT_EQ(stats.num_errors(), 0u);
  EXPECT_EQ(store_->Stats(1).hits, 0u);
  EXPECT_GT(store_->LoadCostUs(0, 10, 1000), 0);
}

TEST_F(StoreTest, ABlockIsInvisibleUntilTheTierHasConfirmedIt) {
  OpenFaultyOnly();
  net_->Set(Fault::kSlow, 1, milliseconds(500));
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(store_->Find(NumberedKey(0)).present, 0u);
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(store_->Find(NumberedKey(0)).present, 1u);
  EXPECT_FALSE(Put(0)) << "the tier has it";
}

TEST_F(StoreTest, ABlockThatCouldNotBeStoredIsInvisibleAndCounted) {
  OpenFaultyOnly();
  for (const auto& [fault, reason] :
       {std::pair(Fault::kFull, ErrorReason::kFull), std::pair(Fault::kIo, ErrorReason::kIo)}) {
    net_->Set(fault, 1);
    ASSERT_TRUE(Put(0));
    store_->Drain(Soon());
    EXPECT_EQ(Errors(0, TierOp::kPut, reason), 1u);
    EXPECT_EQ(store_->Find(NumberedKey(0)).present, 0u);
    EXPECT_EQ(NumLoaded(LoadAll(1)), 0u);
  }
}

TEST_F(StoreTest, ABlockThatWasLostIsAMissAndFindLearnsIt) {
  OpenFaultyOnly();
  net_->Set(Fault::kLost, 1);
  ASSERT_TRUE(Put(0));
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(store_->Find(NumberedKey(0)).present, 1u);
  const auto results = LoadAll(1);
  EXPECT_EQ(results[0].outcome, Outcome::kMiss);
  EXPECT_EQ(store_->Find(NumberedKey(0)).present, 0u);
  EXPECT_EQ(store_->Stats(0).misses, 1u);
}

TEST_F(StoreTest, DamagedBytesAreMissesAndCountersNeverAnswers) {
  for (const Fault fault : {Fault::kBitFlip, Fault::kShortRead, Fault::kSwapped}) {
    OpenFaultyOnly();
    PutAll(16);
    net_->Set(fault, 1);
    const auto results = LoadAll(16);
    const size_t bad = fault == Fault::kSwapped ? 2 : 16;
    EXPECT_EQ(NumLoaded(results), 16 - bad);
    EXPECT_EQ(Errors(0, TierOp::kGet, ErrorReason::kCorrupt) +
                  Errors(0, TierOp::kGet, ErrorReason::kForeign),
              bad);
    EXPECT_EQ(store_->Stats(0).breaker, BreakerState::kClosed) << "the tier itself is well";
  }
}

TEST_F(StoreTest, ADamagedBlockCanBeStoredAgain) {
  OpenFaultyOnly();
  PutAll(1);
  net_->Set(Fault::kBitFlip, 1);
  EXPECT_EQ(NumLoaded(LoadAll(1)), 0u);
  ASSERT_TRUE(store_->Drain(Soon()));  // it is removed there
  ASSERT_TRUE(Put(0));
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(NumLoaded(LoadAll(1)), 1u);
}

TEST_F(StoreTest, WaitingCopiesStayWithinTheQueueAndDropsAreCounted) {
  options_.queue_bytes = 10 * 1200;
  OpenFaultyOnly();
  net_->Set(Fault::kSlow, 0, milliseconds(20));
  uint64_t taken = 0;
  for (uint64_t n = 0; n < 50; ++n) {
    taken += Put(n) ? 1 : 0;
    EXPECT_LE(store_->Stats(0).queued_bytes, options_.queue_bytes);
  }
  EXPECT_LT(taken, 50u);
  EXPECT_EQ(store_->Stats(0).queue_drops, 50 - taken);
  net_->Set(Fault::kNone);
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(store_->Stats(0).queued_bytes, 0u);
  EXPECT_EQ(store_->Stats(0).stored, taken);
}

TEST_F(StoreTest, AMissFallsThroughToTheNextTierAndIsPromoted) {
  OpenBoth(/*disk_bytes=*/5 * 1200);  // the last few blocks only
  PutAll(20);
  const auto results = LoadAll(20);
  EXPECT_EQ(NumLoaded(results), 20u);
  EXPECT_EQ(results[0].tier, 1u);
  EXPECT_GT(store_->Stats(1).hits, 10u);
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_GT(store_->Stats(0).promoted, 0u);
}

TEST_F(StoreTest, ADamagedBlockOfTheFastTierComesFromTheSlowOne) {
  OpenBoth();
  PutAll(3);
  std::string damaged = NumberedBlock(1).Encoded();
  damaged[400] = static_cast<char>(damaged[400] ^ 1);
  PutOne(*disk_, NumberedKey(1), damaged);
  const auto results = LoadAll(3);
  EXPECT_EQ(NumLoaded(results), 3u);
  EXPECT_EQ(results[1].tier, 1u);
  EXPECT_EQ(Errors(0, TierOp::kGet, ErrorReason::kCorrupt), 1u);
  // And what came from there replaces it.
  ASSERT_TRUE(store_->Drain(Soon()));
  ASSERT_TRUE(Eventually([this] {
    const auto again = LoadAll(3);
    return NumLoaded(again) == 3 && again[1].tier == 0;
  }));
}

TEST_F(StoreTest, OfWhatMissesAfterAnErrorTheErrorIsReported) {
  OpenBoth();
  PutAll(1);
  PutOne(*disk_, NumberedKey(0), "rubbish");
  const BlockKey key = NumberedKey(0);
  net_->Remove({&key, 1}, Soon());
  const auto results = LoadAll(1);
  EXPECT_EQ(results[0].outcome, Outcome::kError);
  EXPECT_EQ(results[0].reason, ErrorReason::kCorrupt);
}

TEST_F(StoreTest, AProbeTellsFindWhatOnlyThePeerKnows) {
  OpenFaultyOnly();
  PutOne(*net_, NumberedKey(1), NumberedBlock(1).Encoded());  // another server did
  EXPECT_EQ(store_->Find(NumberedKey(1)).unknown, 1u);
  Probe({NumberedKey(1), NumberedKey(2)});
  EXPECT_EQ(store_->Find(NumberedKey(1)).present, 1u);
  EXPECT_EQ(store_->Find(NumberedKey(2)).present, 0u);
  EXPECT_EQ(store_->Find(NumberedKey(2)).unknown, 0u);
  const uint64_t calls = net_->num_calls();
  Probe({NumberedKey(1), NumberedKey(2)});
  EXPECT_EQ(net_->num_calls(), calls) << "what is known is not asked";
}

TEST_F(StoreTest, AnotherModelsBlockIsForeignAndAMiss) {
  OpenFaultyOnly();
  PutOne(*net_, NumberedKey(0), NumberedBlock(0).Encoded("another model"));
  const auto results = LoadAll(1);
  EXPECT_EQ(results[0].reason, ErrorReason::kForeign);
  EXPECT_EQ(GetOne(*net_, NumberedKey(0)).outcome, Outcome::kOk) << "it is somebody's";
}

TEST_F(StoreTest, ATierThatFailsIsCutOffAndComesBackByItself) {
  for (const Fault fault : {Fault::kTimeout, Fault::kUnavailable}) {
    OpenFaultyOnly();
    PutAll(4);
    net_->Set(fault);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(NumLoaded(LoadAll(4)), 0u);
    EXPECT_NE(store_->Stats(0).breaker, BreakerState::kClosed);
    EXPECT_EQ(store_->Find(NumberedKey(0)).present, 0u);
    EXPECT_EQ(store_->Find(NumberedKey(0)).unknown, 0u);
    const auto results = LoadAll(4);
    EXPECT_EQ(results[0].reason, ErrorReason::kBreaker);
    EXPECT_FALSE(Put(99));
    EXPECT_GE(store_->Stats(0).breaker_openings, 1u);

    net_->Set(Fault::kNone);
    ASSERT_TRUE(Eventually([this] { return store_->Stats(0).breaker == BreakerState::kClosed; }));
    EXPECT_EQ(NumLoaded(LoadAll(4)), 4u);
  }
}

TEST_F(StoreTest, ADeadTierDoesNotKeepTheOtherFromWorking) {
  OpenBoth();
  PutAll(4);
  net_->Set(Fault::kTimeout);
  for (uint64_t n = 4; n < 40; ++n) EXPECT_TRUE(Put(n));
  ASSERT_TRUE(Eventually([this] { return store_->Stats(0).stored == 40; }));
  EXPECT_EQ(NumLoaded(LoadAll(40)), 40u);
  EXPECT_EQ(store_->Stats(0).hits, 40u);
}

TEST_F(StoreTest, ALoadEndsAtItsDeadlineAndKeepsWhatHasCome) {
  OpenBoth(/*disk_bytes=*/5 * 1200);
  PutAll(20);
  net_->Set(Fault::kTimeout);
  const auto results = LoadAll(20, In(milliseconds(400)));
  EXPECT_GT(NumLoaded(results), 0u) << "those on disk";
  EXPECT_LT(NumLoaded(results), 20u);
}

TEST_F(StoreTest, RemoveComesAfterThePutsThatAreQueued) {
  OpenBoth();
  for (uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(Put(n));
  const std::vector<BlockKey> keys = {NumberedKey(1), NumberedKey(3)};
  store_->Remove(keys);
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(store_->Find(NumberedKey(1)).present, 0u);
  EXPECT_EQ(store_->Find(NumberedKey(2)).present, 3u);
  EXPECT_EQ(NumLoaded(LoadAll(5)), 3u);
}

TEST_F(StoreTest, BesideStepsOnlyTheTiersWithAPaceWait) {
  const auto pace = std::make_shared<WritePace>(0.5, pace_clock_.clock());
  options_.pace = pace;
  options_.paced_from = 1;
  options_.writer_nice = 1;
  OpenBoth();
  pace->BeginStep();
  pace->Spend(WritePace::kHeadStartUs);
  for (uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(Put(n));
  ASSERT_TRUE(Eventually([this] { return store_->Stats(0).stored == 4; }));
  EXPECT_EQ(NumLoaded(LoadAll(4)), 4u) << "findable before the slow tier has them";
  EXPECT_EQ(store_->Stats(1).queued_blocks, 4u);
  EXPECT_EQ(store_->Stats(1).stored, 0u);
  pace->EndStep(100'000);  // which earns more than four small blocks take
  ASSERT_TRUE(Eventually([this] { return store_->Stats(1).stored == 4; }));
  EXPECT_GT(store_->Stats(1).write_cpu_us, 0);
  EXPECT_LT(pace->credit_us(), 50'000) << "what it took was spent";
}

TEST_F(StoreTest, DrainAndIdleTimeDoNotWaitForThePace) {
  const auto pace = std::make_shared<WritePace>(0, pace_clock_.clock());
  options_.pace = pace;
  OpenBoth();
  pace->BeginStep();
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(store_->Stats(0).stored, 0u) << "from the first tier on";
  ASSERT_TRUE(store_->Drain(Soon()));
  EXPECT_EQ(store_->Stats(0).stored + store_->Stats(1).stored, 2u);
  ASSERT_TRUE(Put(1));
  pace->EndStep(1e6);
  EXPECT_EQ(store_->Stats(1).stored, 1u) << "no share, no credit";
  pace_clock_.Advance(WritePace::kIdle);
  ASSERT_TRUE(Eventually([this] { return store_->Stats(1).stored == 2; }));
}

TEST_F(StoreTest, WithoutTiersEverythingIsAMiss) {
  store_ = TierStore::Create(options_, {});
  EXPECT_FALSE(Put(0));
  EXPECT_EQ(NumLoaded(LoadAll(2)), 0u);
  EXPECT_EQ(LoadAll(0).size(), 0u);
  Probe({NumberedKey(0)});
  EXPECT_TRUE(store_->Drain(Soon()));
}

TEST_F(StoreTest, DestructionEndsTicketsThatWait) {
  OpenFaultyOnly();
  PutAll(4);
  net_->Set(Fault::kSlow, 0, milliseconds(30));
  std::vector<std::shared_ptr<LoadTicket>> tickets;
  std::atomic<int> callbacks{0};
  const NumberedBlock block(0);
  const Want want{block.put.name, {}};
  for (int i = 0; i < 5; ++i) {
    tickets.push_back(store_->Load({&want, 1}, Soon(), [&callbacks] { ++callbacks; }));
  }
  store_.reset();
  for (const auto& ticket : tickets) EXPECT_TRUE(ticket->Done());
  EXPECT_EQ(callbacks, 5);
}

// Threads put, find, load, probe and remove while the tier fails in every way: whatever is loaded
// is right, and in the end everything is well again.
TEST_F(StoreTest, RandomFaultsNeverGiveWrongBytes) {
  options_.absent_for = milliseconds(1);
  OpenBoth(/*disk_bytes=*/20 * 1200);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> loaded{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([this, t, &stop, &loaded] {
      base::Random random(t);
      while (!stop) {
        const uint64_t n = random.Below(60);
        const NumberedBlock block(n);
        switch (random.Below(5)) {
          case 0:
            store_->Put(block.put);
            break;
          case 1:
            if (random.OneIn(10)) store_->Remove({&block.put.name.key, 1});
            break;
          case 2:
            store_->Probe({&block.put.name.key, 1}, {});
            break;
          default: {
            std::vector<std::byte> target(1000);
            const Want want{block.put.name, target};
            const auto ticket = store_->Load({&want, 1}, In(milliseconds(40)), {});
            if (random.OneIn(2)) ticket->WaitUntil(In(milliseconds(random.Below(20))));
            ticket->Cancel();
            if (!ticket->result(0).loaded()) break;
            ++loaded;
            ASSERT_TRUE(std::ranges::equal(target, block.put.payload)) << n;
          }
        }
      }
    });
  }
  base::Random random(99);
  constexpr Fault kFaults[] = {Fault::kNone,    Fault::kBitFlip,     Fault::kShortRead,
                               Fault::kSwapped, Fault::kTimeout,     Fault::kLost,
                               Fault::kFull,    Fault::kUnavailable, Fault::kSlow};
  for (int i = 0; i < 60; ++i) {
    net_->Set(kFaults[random.Below(std::size(kFaults))], 3, milliseconds(5));
    std::this_thread::sleep_for(milliseconds(10));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(loaded, 0u);
  net_->Set(Fault::kNone);
  ASSERT_TRUE(Eventually([this] { return store_->Stats(1).breaker == BreakerState::kClosed; }));
  ASSERT_TRUE(Eventually([this] { return store_->Drain(Soon()); }));
  EXPECT_EQ(store_->Stats(0).queued_bytes + store_->Stats(1).queued_bytes, 0u);
  EXPECT_EQ(store_->Stats(0).queued_blocks + store_->Stats(1).queued_blocks, 0u);
}

}  // namespace
}  // namespace kvlink::tier
