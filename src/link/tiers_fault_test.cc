// Tiers that fail, hang or are slow: what does not come whole and in time is computed, and no page
// is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "link/tier_harness.h"

namespace kvlink::link {
namespace {

struct Damage {
  const char* name;
  std::atomic<int> Faults::*count;
};
class DamagedTiersTest : public TiersTest, public ::testing::WithParamInterface<Damage> {};

// Acceptance 1: one flipped bit is a miss and a counter, never a wrong answer.
TEST_P(DamagedTiersTest, ABlockThatDoesNotComeWholeIsComputed) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.*GetParam().count = 1;
  auto begun = harness_.TryBeginLoaded(harness_.RequestOf(prompt_));
  ASSERT_TRUE(begun.ok());
  EXPECT_EQ(begun->ready(), 0u);  // the first block of the chain was hit
  begun->ComputePrompt();
  EXPECT_EQ(begun->WrongRows(), 0u);
  const CacheStats stats = harness_.cache->Stats();
  EXPECT_EQ(stats.failed_loads, 1u);
  EXPECT_EQ(stats.fallbacks, 1u);
  begun->Release();
  // Computed, it is written again.
  harness_.MoveAllDown();
  harness_.clock.Advance(LowerTiers::kRetryAfter + std::chrono::seconds(1));
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 64u);
}

INSTANTIATE_TEST_SUITE_P(Damages, DamagedTiersTest,
                         ::testing::Values(Damage{"BitFlip", &Faults::bit_flips},
                                           Damage{"ShortRead", &Faults::short_reads},
                                           Damage{"ReadError", &Faults::get_errors},
                                           Damage{"Loss", &Faults::losses}),
                         [](const auto& damage) { return damage.param.name; });

TEST_F(TiersTest, ABlockThatWasDamagedOnceIsNotWrittenForEver) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.bit_flips = 1;
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 0u);
  harness_.MoveAllDown();  // written again
  harness_.clock.Advance(LowerTiers::kRetryAfter + std::chrono::seconds(1));
  harness_.Serve(prompt_);  // computed again, although the tier has all of it
  int turns = 0;
  while (harness_.cache->RunIdle() && turns < 100) ++turns;
  EXPECT_LT(turns, 100) << "there is nothing left to write";
}

TEST_F(TiersTest, AFailedBlockIsTheReasonOfTheMissAndIsLeftAloneForAWhile) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.get_errors = 1;
  std::unique_ptr<Load> load = StartLoad(prompt_);
  ASSERT_NE(load, nullptr);
  TierHarness::Finish(*load);
  load.reset();
  EXPECT_EQ(harness_.Lookup(prompt_).loadable_tokens, 0u);
  EXPECT_EQ(harness_.Lookup(prompt_).miss_reason, MissReason::kTierError);
  const uint64_t before = Misses(MissReason::kTierError);
  harness_.Begin(prompt_);
  EXPECT_EQ(Misses(MissReason::kTierError), before + 1);
  harness_.clock.Advance(LowerTiers::kRetryAfter + std::chrono::seconds(1));
  EXPECT_EQ(harness_.Lookup(prompt_).loadable_tokens, 64u);
}

TEST_F(TiersTest, WhatCameBeforeAFailureIsUsed) {
  harness_.Serve(FirstOf(prompt_, 3 * kBlock));
  harness_.MoveAllDown();
  harness_.ServeLoaded(prompt_);
  harness_.MoveAllDown();
  // The first three are there before the fault is set: it hits the fourth.
  harness_.ServeLoaded(FirstOf(prompt_, 3 * kBlock + 1));
  faults_.bit_flips = 1;
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 3 * kBlock + 1);  // that one lay in RAM
}

TEST_F(TiersTest, ALoadThatIsLateBecomesComputing) {
  harness_.options.similar_model.prefill_us_per_row = 1000;  // it is given 20 ms
  harness_.Create();
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.hangs = true;
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 0u);
  EXPECT_EQ(harness_.cache->Stats().failed_loads, 1u);
  faults_.hangs = false;
  harness_.ExpectConserved();
}

TEST_F(TiersTest, ACancelledLoadGivesItsPagesBackAtOnce) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.hangs = true;
  {
    const std::unique_ptr<Load> load = StartLoad(prompt_);
    EXPECT_EQ(harness_.cache->Stats().in_use_pages, 8u);
  }
  EXPECT_EQ(harness_.cache->Stats().free_pages, 64u);
  EXPECT_FALSE(harness_.Lookup(prompt_).in_flight.has_value());
  faults_.hangs = false;
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 64u);
}

TEST_F(TiersTest, ACacheMayGoWhileALoadHangs) {
  harness_.Serve(prompt_);
  harness_.MoveAllDown();
  faults_.hangs = true;
  std::unique_ptr<Load> load = StartLoad(prompt_);
  harness_.cache.reset();
  load.reset();
  faults_.hangs = false;
}

TEST_F(TiersTest, APeerThatDoesNotAnswerIsWaitedForBriefly) {
  faults_.asks_peer = true;
  harness_.options.similar_model.prefill_us_per_row = 100;
  harness_.Create();
  faults_.hangs = true;
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 0u);
  faults_.hangs = false;
}

}  // namespace
}  // namespace kvlink::link
