// What is written to a tier, and when: in idle time, or when writing pays.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "link/tier_harness.h"
#include "link/write_gate.h"
#include "tier/testing/tier_world.h"

namespace kvlink::link {
namespace {

class UnpaidTiersTest : public TiersTest {
 protected:
  UnpaidTiersTest() {
    harness_.options.tiers.write_head_start = std::chrono::milliseconds(0);
    harness_.options.tiers.write_share = 0;
    harness_.Create();
  }
};

TEST_F(UnpaidTiersTest, WithoutCreditBlocksWaitForIdleTime) {
  harness_.Serve(prompt_);
  EXPECT_EQ(faults_.puts, 0u);
  while (harness_.cache->RunIdle()) {
  }
  harness_.MoveAllDown();
  EXPECT_EQ(harness_.BlocksIn(0), 8u);
  EXPECT_EQ(harness_.ServeLoaded(prompt_), 64u);
}

TEST_F(UnpaidTiersTest, WhatWaitsForIdleTimeDoesNotPileUpWhereThereIsNone) {
  TierHarness small(kBlock, 16);
  small.options.tiers = harness_.options.tiers;
  small.Create();
  auto serve_until = [&, seed = uint64_t{0}](uint64_t end) mutable {
    for (; seed < end; ++seed) small.Serve(RandomTokens(seed, 15 * kBlock));
    return small.cache->Stats().tracking_bytes;
  };
  const uint64_t before = serve_until(50);
  EXPECT_LE(serve_until(400), before + 1024);
}

TEST_F(UnpaidTiersTest, EvictedBlocksThatWereUsedOnceAreNotWrittenThoseUsedAgainAre) {
  TierHarness small(kBlock, 16);
  small.options.tiers = harness_.options.tiers;
  small.Create();
  const Tokens popular = RandomTokens(2, 4 * kBlock + 1);
  small.Serve(popular);
  small.Serve(popular);
  for (uint64_t seed = 10; seed < 40; ++seed) small.Serve(RandomTokens(seed, 15 * kBlock));
  EXPECT_EQ(small.Lookup(popular).exact_tokens, 0u);
  EXPECT_GT(small.cache->Stats().unwritten_blocks, 100u);
  while (small.faults[0]->puts < 4) std::this_thread::yield();  // they are written behind
  EXPECT_EQ(small.Lookup(RandomTokens(10, 15 * kBlock)).loadable_tokens, 0u);
  EXPECT_EQ(small.ServeLoaded(popular), 4 * kBlock);
}

TEST_F(UnpaidTiersTest, ComputingAgainWhatWasEvictedEarnsTheRightToWrite) {
  TierHarness small(kBlock, 16);
  small.options.tiers = harness_.options.tiers;
  small.Create();
  const Tokens other = RandomTokens(3, 14 * kBlock);
  small.Serve(prompt_);
  small.Serve(other);
  EXPECT_EQ(small.faults[0]->puts, 0u);
  small.Serve(prompt_);  // evicted, and computed again
  EXPECT_TRUE(tier::Eventually([&] { return small.faults[0]->puts > 0; }));
}

// A tier is of use where the working set is several times the RAM.
TEST_F(UnpaidTiersTest, ComputingAgainIsRegrettedAtFourTimesTheRam) {
  TierHarness small(kBlock, 16);
  small.options.tiers = harness_.options.tiers;
  small.Create();
  small.Serve(prompt_);
  for (uint64_t seed = 10; seed < 14; ++seed) small.Serve(RandomTokens(seed, 15 * kBlock));
  EXPECT_EQ(small.faults[0]->puts, 0u);
  small.Serve(prompt_);
  EXPECT_TRUE(tier::Eventually([&] { return small.faults[0]->puts > 0; }));
}

TEST_F(TiersTest, AFullQueueLosesNothingButTime) {
  faults_.hangs = true;
  for (uint64_t seed = 0; seed < 6; ++seed) harness_.Serve(RandomTokens(seed, 10 * kBlock));
  faults_.hangs = false;
  harness_.DrainAll();
  harness_.ExpectConserved();
}

TEST(WriteGate, TrafficThatNeverComesBackCostsItsShareAndTheHeadStart) {
  WriteGate gate(0.01, 1000);
  double computed = 0;
  uint64_t written = 0;
  constexpr uint64_t kBytes = 1 << 20;
  for (int block = 0; block < 100'000; ++block) {
    gate.EarnComputing(10'000);
    computed += 10'000;
    if (!gate.IsOpen()) continue;
    gate.Spend(kBytes, 1);
    ++written;
  }
  const double cost = WriteGate::kUsPerByte * kBytes;
  EXPECT_LE(static_cast<double>(written) * cost, 0.01 * computed + 1000 + cost);
  EXPECT_GE(static_cast<double>(written) * cost, 0.01 * computed);
}

TEST(WriteGate, WhatLoadsSaveIsEarnedInFull) {
  WriteGate gate(0, 0);
  EXPECT_FALSE(gate.IsOpen());
  gate.EarnSaving(20'000);
  EXPECT_TRUE(gate.IsOpen());
  EXPECT_EQ(gate.credit_us(), 20'000);
  gate.EarnRegret(20'000);
  EXPECT_EQ(gate.credit_us(), 30'000);
  gate.Spend(10 << 20, 2);
  EXPECT_LT(gate.credit_us(), 0);
}

}  // namespace
}  // namespace kvlink::link
