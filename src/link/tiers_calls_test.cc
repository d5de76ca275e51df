// What a cache says about its tiers, whom it wakes, and what it says where it has none or they take
// nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "link/tier_harness.h"
#include "tier/testing/tier_world.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kBlock = 8;

TEST(TierCalls, ACacheWithoutTiersHasNothingToLoadToWriteOrToTell) {
  CacheHarness harness(kBlock, 64);
  harness.Create();
  const Tokens prompt = RandomTokens(1, 5 * kBlock);
  harness.cache->OnLoadProgress([] { ADD_FAILURE() << "nobody loads"; });
  harness.Serve(prompt);
  harness.cache->Clear();
  const LookupRequest request = harness.RequestOf(prompt);
  const Plan plan = harness.cache->Lookup(request);
  EXPECT_EQ(plan.loadable_tokens, 0u);
  EXPECT_FALSE(plan.tiers_asked);
  EXPECT_EQ(harness.cache->StartLoad(request, plan).status().code(), StatusCode::kNotFound);
  harness.cache->ObserveCompute(100, 1000, 1);
  EXPECT_FALSE(harness.cache->RunIdle());
  EXPECT_TRUE(harness.cache->Drain(std::chrono::milliseconds(0)));
  EXPECT_TRUE(harness.cache->Tiers().empty());
}

TEST(TierCalls, WhoWaitsForALoadIsWokenUntilHeSaysThatHeIsGone) {
  TierHarness harness(kBlock, 64);
  harness.Create();
  const Tokens prompt = RandomTokens(1, 8 * kBlock + 3);
  std::atomic<int> woken{0};
  harness.cache->OnLoadProgress([&woken] { ++woken; });
  harness.Serve(prompt);
  harness.MoveAllDown();
  EXPECT_EQ(woken.load(), 0);
  EXPECT_EQ(harness.ServeLoaded(prompt), 64u);
  EXPECT_TRUE(tier::Eventually([&] { return woken > 0; }));
  harness.cache->OnLoadProgress(nullptr);
  const int before = woken;
  harness.MoveAllDown();
  EXPECT_EQ(harness.ServeLoaded(prompt), 64u);
  EXPECT_EQ(woken.load(), before);
}

TEST(TierCalls, ErrorsOfATierAreToldByWhatWasDoneAndWhy) {
  TierHarness harness(kBlock, 64);
  harness.Create();
  const Tokens prompt = RandomTokens(1, 8 * kBlock + 3);
  harness.faults[0]->put_errors = 2;
  harness.Serve(prompt);
  harness.MoveAllDown();
  harness.faults[0]->put_errors = 0;
  const auto count = [&](const std::string& op, const std::string& reason) {
    const std::vector<TierFigures> tiers = harness.cache->Tiers();
    EXPECT_EQ(tiers.size(), 1u);
    uint64_t found = 0;
    for (const TierFigures::Error& error : tiers[0].errors) {
      EXPECT_GT(error.count, 0u);
      if (error.op == op && error.reason == reason) found += error.count;
    }
    return found;
  };
  EXPECT_EQ(count("put", "full"), 2u);
  EXPECT_EQ(count("get", "corrupt"), 0u);

  const Tokens other = RandomTokens(2, 8 * kBlock + 3);
  harness.Serve(other);
  harness.MoveAllDown();
  harness.faults[0]->bit_flips = 1;
  EXPECT_EQ(harness.ServeLoaded(other), 0u);
  EXPECT_EQ(count("get", "corrupt"), 1u);
}

// A server that had its disk alone until now, or whose Redis was emptied.
TEST(TierCalls, BlocksThatComeFromDiskAreWrittenToARemoteTierThatLacksThem) {
  TierHarness harness(kBlock, 64, KvType::kF16, {"cold", "remote"});
  harness.faults[1]->asks_peer = true;
  harness.Create();
  const Tokens prompt = RandomTokens(1, 8 * kBlock + 3);
  harness.Serve(prompt);
  harness.MoveAllDown();
  ASSERT_EQ(harness.BlocksIn(1), 8u);
  harness.blocks[1] = std::make_shared<tier::MemoryTier>(uint64_t{1} << 30, "remote");
  harness.Create();
  EXPECT_EQ(harness.ServeLoaded(prompt), 64u);
  harness.DrainAll();
  EXPECT_EQ(harness.BlocksIn(1), 8u);
  const uint64_t puts = harness.faults[1]->puts;
  // Nothing is written twice: neither by the next load, nor after a restart.
  harness.MoveAllDown();
  EXPECT_EQ(harness.ServeLoaded(prompt), 64u);
  harness.Create();
  EXPECT_EQ(harness.ServeLoaded(prompt), 64u);
  harness.DrainAll();
  EXPECT_EQ(harness.faults[1]->puts.load(), puts);
  harness.ExpectConserved();
}

TEST(TierCalls, ADrainInVainSaysSoWhenTheTierIsCutOff) {
  CacheHarness harness(kBlock, 64);
  const auto blocks = std::make_shared<tier::MemoryTier>(uint64_t{1} << 30, "cold");
  const auto faults = std::make_shared<Faults>();
  std::vector<std::unique_ptr<tier::BlockTier>> tiers;
  tiers.push_back(std::make_unique<FaultyTier>(blocks, faults));
  tier::TierStoreOptions options;
  options.model_fingerprint = harness.options.model_fingerprint;
  options.store_timeout = options.ping_timeout = std::chrono::milliseconds(50);
  options.breaker.failures = 1;
  auto created =
      CreateCacheOnTiers(harness.options, tier::TierStore::Create(options, std::move(tiers)));
  ASSERT_TRUE(created.ok()) << created.status().ToString();
  harness.cache = std::move(created).value();
  faults->hangs = true;
  harness.Serve(RandomTokens(1, 40 * kBlock));  // more than one call takes
  EXPECT_FALSE(harness.cache->Drain(std::chrono::minutes(10)));
  EXPECT_NE(harness.cache->Tiers()[0].breaker, "closed");
  EXPECT_EQ(blocks->Usage().blocks, 0u);
  // What it would not take then is written when it does.
  faults->hangs = false;
  EXPECT_TRUE(tier::Eventually([&] { return harness.cache->Tiers()[0].breaker == "closed"; }));
  harness.Serve(RandomTokens(2, 8 * kBlock));
  EXPECT_TRUE(harness.cache->Drain(std::chrono::minutes(10)));
  EXPECT_GE(blocks->Usage().blocks, 8u);
  EXPECT_GE(harness.cache->Tiers()[0].breaker_openings, 1u);
}

}  // namespace
}  // namespace kvlink::link
