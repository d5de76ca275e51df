// Blocks that leave RAM for a tier and come back: what comes is what was stored, or it is computed.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "link/tier_harness.h"

namespace kvlink::link {
namespace {

TEST_F(TiersTest, FullBlocksAreWrittenAndComeBackAsTheyWere) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.BlocksIn(0), 8u);
  const Plan plan = harness_.Lookup(prompt_);
  EXPECT_EQ(plan.exact_tokens, 0u);
  EXPECT_EQ(plan.loadable_tokens, 64u);
  EXPECT_STREQ(plan.tier, "cold");
  EXPECT_TRUE(plan.tiers_asked);
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 64u);
  const CacheStats stats = harness_.cache->Stats();
  EXPECT_EQ(stats.loaded_tokens, 64u);
  EXPECT_EQ(stats.loads, 1u);
  EXPECT_EQ(stats.failed_loads, 0u);
  EXPECT_EQ(stats.exact_tokens, 64u);
  harness_.ExpectConserved();
}

TEST_F(TiersTest, OwnOutputsAreWrittenToo) {
  const Tokens answer = RandomTokens(9, 30);
  harness_.Serve(prompt_, answer);
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.ServeLoaded(prompt_ + answer + RandomTokens(10, 5)),
            (kPrompt + 30) / kBlock * kBlock);
}

TEST_F(TiersTest, OnlyWhatIsNotResidentIsLoaded) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  harness_.ServeLoaded(FirstOf(prompt_, 3 * kBlock + 1));
  const Plan plan = harness_.Lookup(prompt_);
  EXPECT_EQ(plan.exact_tokens, 3 * kBlock);
  EXPECT_EQ(plan.loadable_tokens, 5 * kBlock);
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 8 * kBlock);
  EXPECT_EQ(harness_.cache->Stats().loaded_tokens, 8u * kBlock);
}

TEST_F(TiersTest, ABlockThatHoldsTheLastTokenIsLoadedAndItsLastRowRuns) {
  const Tokens whole = FirstOf(prompt_, 4 * kBlock);
  harness_.Serve(whole);
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.Lookup(whole).loadable_tokens, 4 * kBlock);
  harness_.ServeLoaded(whole);
  EXPECT_EQ(harness_.Lookup(whole).compute_from, 4 * kBlock - 1);
}

TEST_F(TiersTest, WhatMustBeComputedIsNotLoaded) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  LookupRequest request = harness_.RequestOf(prompt_);
  request.min_compute = static_cast<uint32_t>(prompt_.size());
  EXPECT_EQ(harness_.cache->Lookup(request).loadable_tokens, 0u);
  request = harness_.RequestOf(prompt_);
  request.reuse = false;
  EXPECT_EQ(harness_.cache->Lookup(request).loadable_tokens, 0u);
  EXPECT_FALSE(harness_.cache->StartLoad(request, {}).ok());
}

// Acceptance 25.
TEST_F(TiersTest, ARequestThatMayNotBeStoredLeavesNothingInATier) {
  LookupRequest request = harness_.RequestOf(prompt_);
  request.store = false;
  auto secret = harness_.TryBegin(request);
  ASSERT_TRUE(secret.ok());
  secret->ComputePrompt();
  secret->Release();
  harness_.DrainAll();
  EXPECT_EQ(harness_.BlocksIn(0), 0u);
}

TEST_F(TiersTest, ATenantThatIsKeptInRamIsNeitherWrittenNorLookedFor) {
  harness_.options.tiers.may_leave_ram = [](const Namespace& ns) { return ns.tenant != "private"; };
  harness_.Create();
  const Namespace secret{.tenant = "private", .salt = ""};
  harness_.Serve(prompt_, {}, secret);
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.BlocksIn(0), 0u);
  EXPECT_FALSE(harness_.Lookup(prompt_, secret).tiers_asked);
  harness_.Serve(prompt_, {}, {.tenant = "other", .salt = ""});
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.BlocksIn(0), 8u);
}

// Acceptance 24 and 3.
TEST_F(TiersTest, OnlyTheSameTenantSaltAndModelFindABlock) {
  const Namespace mine{.tenant = "a", .salt = "s"};
  harness_.Serve(prompt_, {}, mine);
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.Lookup(prompt_, {.tenant = "b", .salt = "s"}).loadable_tokens, 0u);
  EXPECT_EQ(harness_.Lookup(prompt_, {.tenant = "a", .salt = ""}).loadable_tokens, 0u);
  EXPECT_EQ(harness_.Lookup(prompt_, {.tenant = "as", .salt = ""}).loadable_tokens, 0u);
  EXPECT_EQ(harness_.Lookup(prompt_, mine).loadable_tokens, 64u);
  harness_.options.model_fingerprint = "another model";
  harness_.Create();
  EXPECT_EQ(harness_.Lookup(prompt_, mine).loadable_tokens, 0u);
}

// The layers of a mode's checkpoints are not in the model's fingerprint, but in the pages.
TEST_F(TiersTest, OnlyTheSameCheckpointsFindABlock) {
  CacheOptions& options = harness_.options;
  options.shape.num_layers = 4;
  options.similar.policy = SimilarPolicy::kOn;
  options.similar.mode = ReuseMode::kLayered;
  options.similar_model.embedding = 8;
  const auto loadable = [&](uint32_t reuse_distance) {
    options.similar.max_reuse_distance = reuse_distance;
    harness_.Create();
    return harness_.Lookup(prompt_).loadable_tokens;
  };
  EXPECT_EQ(loadable(1), 0u);
  harness_.Serve(prompt_);
  harness_.DrainAll();
  EXPECT_EQ(loadable(1), 64u);
  EXPECT_EQ(loadable(2), 0u) << "as large, but of another layer";
  options.similar.policy = SimilarPolicy::kOff;
  EXPECT_EQ(loadable(1), 0u);
}

// Acceptance 22.
TEST_F(TiersTest, AfterARestartTheSameBlocksAreFound) {
  harness_.Serve(prompt_);
  harness_.DrainAll();
  harness_.Create();
  EXPECT_EQ(harness_.Lookup(prompt_).exact_tokens, 0u);
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 64u);
}

// Acceptance 23.
TEST_F(TiersTest, ChildrenOfABlockThatIsGoneAreNoHits) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  tier::BlockKey first;
  ASSERT_TRUE(harness_.blocks[0]
                  ->List([&](const tier::TierEntry& entry) {
                    if (entry.parent == tier::BlockKey{}) first = entry.key;
                    return true;
                  })
                  .ok());
  harness_.blocks[0]->Remove({&first, 1}, tier::TimePoint::max());
  EXPECT_EQ(harness_.BlocksIn(0), 7u);
  const Plan plan = harness_.Lookup(prompt_);
  EXPECT_EQ(plan.loadable_tokens, 0u);
  EXPECT_EQ(plan.exact_tokens, 0u);
  // Computed again, it makes the rest reachable: those are not computed or written a second time.
  harness_.Serve(FirstOf(prompt_, kBlock));
  harness_.DrainAll();
  EXPECT_EQ(harness_.Lookup(prompt_).loadable_tokens, 7 * kBlock);
}

TEST_F(TiersTest, RequestsForTheSameBlocksWaitForTheSameLoad) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.hangs = true;
  const std::unique_ptr<Load> load = StartLoad(prompt_);
  ASSERT_NE(load, nullptr);
  const Plan other = harness_.Lookup(FirstOf(prompt_, 3 * kBlock) + RandomTokens(5, 20));
  ASSERT_TRUE(other.in_flight.has_value());
  EXPECT_EQ(other.in_flight->leader, load->id());
  EXPECT_EQ(other.in_flight->num_tokens, 3 * kBlock);
  EXPECT_TRUE(harness_.cache->StillComputing(*other.in_flight));
  EXPECT_FALSE(load->Poll());
  faults_.hangs = false;
  TierHarness::Finish(*load);
  EXPECT_FALSE(harness_.cache->StillComputing(*other.in_flight));
  EXPECT_EQ(harness_.Lookup(prompt_).exact_tokens, 64u);
  EXPECT_FALSE(harness_.Lookup(prompt_).in_flight.has_value());
  EXPECT_EQ(faults_.gets, 8u);
}

TEST_F(TiersTest, WhatWasLoadedStaysUntilTheRequestBegins) {
  TierHarness small(kBlock, 12);
  small.Create();
  small.Serve(prompt_);
  small.MoveAllDown();
  const Tokens beginning = FirstOf(prompt_, 4 * kBlock + 1);
  const LookupRequest request = small.RequestOf(beginning);
  auto load = small.cache->StartLoad(request, small.cache->Lookup(request));
  ASSERT_TRUE(load.ok()) << load.status().ToString();
  TierHarness::Finish(**load);
  small.Serve(RandomTokens(7, 7 * kBlock));  // evicts whatever can be evicted
  EXPECT_EQ(small.cache->Lookup(request).exact_tokens, 4 * kBlock);
  EXPECT_EQ(small.cache->Stats().in_use_pages, 4u);
  load->reset();
  EXPECT_EQ(small.cache->Stats().in_use_pages, 0u);
}

TEST_F(TiersTest, WithoutPagesNothingIsLoaded) {
  TierHarness small(kBlock, 12);
  small.Create();
  small.Serve(prompt_);
  small.MoveAllDown();
  const Branch other = small.Begin(RandomTokens(3, 8 * kBlock - 1));
  const Tokens beginning = FirstOf(prompt_, 6 * kBlock);
  const LookupRequest request = small.RequestOf(beginning);
  const auto load = small.cache->StartLoad(request, small.cache->Lookup(request));
  EXPECT_EQ(load.status().code(), StatusCode::kResourceExhausted);
  small.ExpectConserved();
}

// Acceptance 20.
TEST_F(TiersTest, ComputingIsChosenWhereLoadingWouldTakeLonger) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  harness_.ServeLoaded(prompt_);
  harness_.MoveAllDown();
  for (int i = 0; i < 200; ++i) harness_.cache->ObserveCompute(1000, 1, 1);
  EXPECT_EQ(harness_.Lookup(prompt_).loadable_tokens, 0u);
  EXPECT_EQ(harness_.Lookup(prompt_).miss_reason, MissReason::kCold);
  // Once in a while it is tried, to see whether things have changed.
  harness_.clock.Advance(std::chrono::seconds(6));
  EXPECT_EQ(harness_.Lookup(prompt_).loadable_tokens, 64u);
}

TEST_F(TiersTest, ATierThatOnlyItsPeerKnowsIsAskedFirst) {
  faults_.asks_peer = true;
  harness_.Create();
  harness_.Serve(prompt_);
  harness_.DrainAll();
  harness_.Create();  // it knows nothing of what it wrote
  const Plan plan = harness_.Lookup(prompt_);
  EXPECT_EQ(plan.loadable_tokens, 64u);
  EXPECT_EQ(plan.tier, nullptr);
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 64u);
  EXPECT_EQ(harness_.ServeLoaded(RandomTokens(77, 40)), 0u);
  EXPECT_EQ(harness_.cache->Stats().failed_loads, 0u) << "an absent block is no failure";
}

TEST_F(TiersTest, ALoadThatLacksRoomAfterAskingSaysSoAndCanBeStartedAgain) {
  TierHarness small(kBlock, 12);
  small.faults[0]->asks_peer = true;
  small.Create();
  small.Serve(prompt_);
  small.MoveAllDown();
  const Tokens longer = prompt_ + RandomTokens(2, 2 * kBlock);  // the peer is asked for the rest
  const LookupRequest request = small.RequestOf(longer);
  {
    const auto other = small.TryBegin(small.RequestOf(RandomTokens(3, 8 * kBlock)));
    ASSERT_TRUE(other.ok());
    auto load = small.cache->StartLoad(request, small.cache->Lookup(request));
    ASSERT_TRUE(load.ok()) << load.status().ToString();
    TierHarness::Finish(**load);
    EXPECT_TRUE((*load)->lacked_room());
    EXPECT_TRUE((*load)->loaded().empty());
  }
  auto again = small.cache->StartLoad(request, small.cache->Lookup(request));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  TierHarness::Finish(**again);
  EXPECT_FALSE((*again)->lacked_room());
  ASSERT_EQ((*again)->loaded().size(), 1u);
  EXPECT_EQ((*again)->loaded()[0].num_rows, 64u);
}

TEST_F(TiersTest, ASlowerTierGivesWhatTheFasterOneHasNot) {
  TierHarness two(kBlock, 64, KvType::kF16, {"cold", "remote"});
  two.Create();
  two.faults[0]->put_errors = 1000;
  two.Serve(prompt_);
  two.DrainAll();
  two.faults[0]->put_errors = 0;
  two.cache->Clear();
  EXPECT_EQ(two.BlocksIn(0), 0u);
  const LookupRequest request = two.RequestOf(prompt_);
  auto load = two.cache->StartLoad(request, two.cache->Lookup(request));
  ASSERT_TRUE(load.ok());
  TierHarness::Finish(**load);
  ASSERT_EQ((*load)->loaded().size(), 1u);
  EXPECT_EQ((*load)->loaded()[0].tier, "remote");
  EXPECT_EQ((*load)->loaded()[0].num_rows, 64u);
  two.DrainAll();
  EXPECT_EQ(two.BlocksIn(0), 8u) << "what came is kept nearer";
}

}  // namespace
}  // namespace kvlink::link
