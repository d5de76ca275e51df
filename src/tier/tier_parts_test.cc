// The small parts: breaker, load cost, known keys, listing and checking.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tier/breaker.h"
#include "tier/known_keys.h"
#include "tier/load_cost.h"
#include "tier/memory_tier.h"
#include "tier/spare_buffers.h"
#include "tier/testing/tier_world.h"
#include "tier/tier_files.h"
#include "tier/write_pace.h"

namespace kvlink::tier {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

struct BreakerWorld {
  base::FakeClock clock;
  Breaker breaker{{3, milliseconds(100), milliseconds(300)}, clock.clock()};
  void Fail(int times) {
    for (int i = 0; i < times; ++i) breaker.RecordFailure();
  }
  // Advances to the trial, and takes it.
  milliseconds PauseThenTrial() {
    const auto pause = std::chrono::duration_cast<milliseconds>(breaker.UntilTrial());
    clock.Advance(pause - milliseconds(1));
    EXPECT_FALSE(breaker.TakeTrial());
    clock.Advance(milliseconds(1));
    EXPECT_TRUE(breaker.TakeTrial());
    return pause;
  }
};

TEST(Breaker, OpensAfterFailuresInARowOnly) {
  BreakerWorld world;
  world.Fail(2);
  world.breaker.RecordSuccess();
  world.Fail(2);
  EXPECT_TRUE(world.breaker.closed());
  world.Fail(1);
  EXPECT_EQ(world.breaker.state(), BreakerState::kOpen);
  EXPECT_EQ(world.breaker.openings(), 1u);
}

TEST(Breaker, OneTrialAtATimeAndItsSuccessCloses) {
  BreakerWorld world;
  world.Fail(3);
  EXPECT_EQ(world.PauseThenTrial(), milliseconds(100));
  EXPECT_EQ(world.breaker.state(), BreakerState::kHalfOpen);
  EXPECT_FALSE(world.breaker.TakeTrial());
  world.breaker.RecordSuccess();
  EXPECT_TRUE(world.breaker.closed());
}

TEST(Breaker, PausesDoubleUpToTheLongestAndStartAnewAfterASuccess) {
  BreakerWorld world;
  world.Fail(3);
  for (const int pause : {100, 200, 300, 300}) {
    EXPECT_EQ(world.PauseThenTrial(), milliseconds(pause));
    world.breaker.RecordFailure();
  }
  world.PauseThenTrial();
  world.breaker.RecordSuccess();
  world.Fail(3);
  EXPECT_EQ(world.PauseThenTrial(), milliseconds(100));
}

TEST(Breaker, ASuccessOfACallFromBeforeDoesNotClose) {
  BreakerWorld world;
  world.Fail(3);
  world.breaker.RecordSuccess();
  EXPECT_EQ(world.breaker.state(), BreakerState::kOpen);
}

TEST(LoadCost, LearnsLatencyAndRateFromCallsOfDifferentSizes) {
  LoadCost cost(1, 1e12);
  base::Random random(1);
  for (int i = 0; i < 100; ++i) {
    const double bytes = static_cast<double>(random.Below(10'000'000));
    cost.Record(bytes, 300 + bytes / 200);  // 200 MB/s
  }
  EXPECT_NEAR(cost.latency_us(), 300, 100);
  EXPECT_NEAR(cost.bytes_per_s(), 200e6, 2e6);
  EXPECT_NEAR(cost.EstimateUs(2e6, 2), 600 + 10000, 250);
}

// Sixteen or four blocks a call, half as fast in every third: one block must not seem to take as
// long as a call of many.
TEST(LoadCost, NoiseInLongCallsIsNotTakenForLatency) {
  LoadCost cost(500, 400e6);
  for (int i = 0; i < 60; ++i) {
    const double bytes = i % 7 == 6 ? 2.9e6 : 11.8e6;
    cost.Record(bytes, bytes / (i % 3 == 0 ? 200 : 400));
    ASSERT_LT(cost.EstimateUs(0.74e6), 6000) << i;
  }
}

TEST(LoadCost, CallsOfOneSizeAreEstimatedAsTheyWere) {
  LoadCost cost(500, 400e6);
  for (int i = 0; i < 50; ++i) cost.Record(1e6, 1234);
  EXPECT_NEAR(cost.EstimateUs(1e6), 1234, 5);
  for (int i = 0; i < 200; ++i) cost.Record(1e6, 5000);  // it became slower
  EXPECT_NEAR(cost.EstimateUs(1e6), 5000, 50);
}

TEST(LoadCost, NoiseNeverGivesANegativeEstimate) {
  LoadCost cost(500, 400e6);
  base::Random random(2);
  for (int i = 0; i < 1000; ++i) {
    cost.Record(static_cast<double>(random.Below(1000)), static_cast<double>(random.Below(1000)));
    ASSERT_GT(cost.EstimateUs(1), 0);
    ASSERT_GT(cost.EstimateUs(1e9), 0);
    ASSERT_GT(cost.bytes_per_s(), 0);
  }
}

TEST(KnownKeys, ANoIsBelievedForAWhileAndAYesUntilItProvesWrong) {
  base::FakeClock clock;
  KnownKeys known(100, milliseconds(50));
  const BlockKey key = NumberedKey(1);
  EXPECT_FALSE(known.Find(key, clock.now()).has_value());
  known.SetAbsent(key, clock.now());
  EXPECT_EQ(known.Find(key, clock.now()), false);
  clock.Advance(milliseconds(50));
  EXPECT_FALSE(known.Find(key, clock.now()).has_value());
  known.SetPresent(key);
  clock.Advance(std::chrono::hours(1000));
  EXPECT_EQ(known.Find(key, clock.now()), true);
  known.SetAbsent(key, clock.now());
  EXPECT_EQ(known.Find(key, clock.now()), false);
  known.Forget(key);
  EXPECT_FALSE(known.Find(key, clock.now()).has_value());
}

TEST(KnownKeys, IsBoundedAndForgetsTheOldestFirst) {
  KnownKeys known(100, milliseconds(50));
  for (uint64_t n = 0; n < 10000; ++n) known.SetPresent(NumberedKey(n));
  EXPECT_LE(known.size(), 102u);
  EXPECT_FALSE(known.Find(NumberedKey(0), {}).has_value());
  EXPECT_EQ(known.Find(NumberedKey(9999), {}), true);
}

TEST(MemoryTier, TheOldestGoesFirstWithinTheBudget) {
  MemoryTier tier(25);
  for (uint64_t n = 0; n < 5; ++n) PutOne(tier, NumberedKey(n), "0123456789");
  EXPECT_EQ(tier.Usage().bytes, 20u);
  EXPECT_EQ(tier.Usage().evictions, 3u);
  EXPECT_EQ(GetOne(tier, NumberedKey(2)).outcome, Outcome::kMiss);
  EXPECT_EQ(GetOne(tier, NumberedKey(4)).bytes, "0123456789");
  EXPECT_EQ(PutOne(tier, NumberedKey(9), std::string(26, 'x'))[0].reason, ErrorReason::kFull);
}

TEST(MemoryTier, KeepsWhatItsOwnerHoldsInsteadOfACopy) {
  MemoryTier tier(25);
  auto bytes = std::make_shared<const std::string>("0123456789");
  const TierPut put{NumberedKey(0), {}, 1, *bytes, bytes};
  ASSERT_EQ(tier.Put({&put, 1}, Soon())[0].outcome, Outcome::kOk);
  EXPECT_EQ(bytes.use_count(), 3) << "the caller's, the item's and the tier's";
  EXPECT_EQ(GetOne(tier, NumberedKey(0)).bytes, "0123456789");
  EXPECT_EQ(tier.Usage().bytes, 10u);
  PutOne(tier, NumberedKey(0), "abcdefghij");
  EXPECT_EQ(bytes.use_count(), 2) << "replaced";
  ASSERT_EQ(tier.Put({&put, 1}, Soon())[0].outcome, Outcome::kOk);
  for (uint64_t n = 1; n < 4; ++n) PutOne(tier, NumberedKey(n), "0123456789");
  EXPECT_EQ(bytes.use_count(), 2) << "evicted";
  ASSERT_EQ(tier.Put({&put, 1}, Soon())[0].outcome, Outcome::kOk);
  tier.Remove({&put.key, 1}, Soon());
  EXPECT_EQ(bytes.use_count(), 2) << "removed";
}

struct PaceWorld {
  base::FakeClock clock;
  WritePace pace{0.5, clock.clock()};
  void Step(double cpu_us) {
    pace.BeginStep();
    pace.EndStep(cpu_us);
  }
};

TEST(WritePace, BesideStepsWritingTakesItsShareAndTheHeadStart) {
  PaceWorld world;
  world.pace.BeginStep();
  EXPECT_TRUE(world.pace.MayWrite()) << "the head start";
  world.pace.Spend(WritePace::kHeadStartUs + 3'000);
  EXPECT_FALSE(world.pace.MayWrite());
  world.pace.EndStep(4'000);
  EXPECT_FALSE(world.pace.MayWrite()) << "1,000 us are owed, and it is not idle yet";
  world.Step(4'000);
  EXPECT_TRUE(world.pace.MayWrite());
  EXPECT_EQ(world.pace.credit_us(), 1'000);
  for (int i = 0; i < 100; ++i) world.Step(1e6);
  EXPECT_EQ(world.pace.credit_us(), WritePace::kMostCreditUs);
}

TEST(WritePace, WhereNothingIsComputedWritingIsFree) {
  PaceWorld world;
  world.pace.Spend(1e9);
  EXPECT_EQ(world.pace.credit_us(), WritePace::kHeadStartUs) << "no step yet";
  world.pace.BeginStep();
  world.pace.Spend(WritePace::kHeadStartUs);
  world.clock.Advance(std::chrono::seconds(10));
  EXPECT_FALSE(world.pace.MayWrite()) << "a long step";
  world.pace.EndStep(0);
  EXPECT_FALSE(world.pace.MayWrite()) << "the next step may begin at once";
  world.clock.Advance(WritePace::kIdle);
  EXPECT_TRUE(world.pace.MayWrite());
  world.pace.Spend(5'000);
  EXPECT_EQ(world.pace.credit_us(), 0) << "nothing was spent";
  world.pace.BeginStep();
  EXPECT_FALSE(world.pace.MayWrite());
}

TEST(WritePace, AShareOfOneNeverWaits) {
  base::FakeClock clock;
  WritePace pace(1.0, clock.clock());
  pace.BeginStep();
  pace.Spend(1e9);
  EXPECT_TRUE(pace.MayWrite());
}

TEST(TierFiles, VerifyFindsDamageAndUnreachableBlocks) {
  MemoryTier tier(1 << 20);
  for (const uint64_t n : {0, 1, 2, 4}) {  // 3, the parent of 4, is not there
    PutOne(tier, NumberedKey(n), NumberedBlock(n).Encoded());
  }
  std::string bytes = NumberedBlock(2).Encoded();
  bytes[500] = static_cast<char>(bytes[500] ^ 4);
  PutOne(tier, NumberedKey(2), bytes);
  PutOne(tier, NumberedKey(7), NumberedBlock(1).Encoded());  // under another key

  size_t visited = 0;
  Result<VerifyReport> report =
      VerifyTier(tier, false, [&visited](const CheckedBlock&) { ++visited; });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(visited, 5u);
  EXPECT_EQ(report->blocks, 3u);
  EXPECT_EQ(report->damaged, 2u);
  EXPECT_EQ(report->unreachable, 1u);
  ASSERT_EQ(report->findings.size(), 2u);
  EXPECT_THAT(report->findings[0] + report->findings[1], HasSubstr("checksum"));
  EXPECT_THAT(report->findings[0] + report->findings[1], HasSubstr(HexOfKey(NumberedKey(7))));

  ASSERT_TRUE(VerifyTier(tier, true).ok());
  report = VerifyTier(tier, false);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->damaged, 0u);
  EXPECT_EQ(report->blocks, 3u);
}

TEST(TierFiles, ExportWritesSoundBlocksAsTheyAre) {
  MemoryTier tier(1 << 20);
  const NumberedBlock block(1);
  PutOne(tier, NumberedKey(1), block.Encoded());
  PutOne(tier, NumberedKey(2), "rubbish");
  const TempDirectory directory;
  const Result<uint64_t> written = ExportTier(tier, directory / "out");
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  EXPECT_EQ(*written, 1u);
  std::ifstream file(directory / "out/" + HexOfKey(NumberedKey(1)) + ".kvblock");
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(bytes, block.Encoded());
  EXPECT_FALSE(ExportTier(tier, "/proc/no/such").ok());
}

TEST(TierFiles, HexOfAKeyReadsBack) {
  const BlockKey key{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(HexOfKey(key), "fedcba98765432100123456789abcdef");
  BlockKey back;
  EXPECT_TRUE(KeyOfHex(HexOfKey(key), &back));
  EXPECT_EQ(back, key);
  EXPECT_FALSE(KeyOfHex("fedcba9876543210012345678 abcdef", &back));
  EXPECT_FALSE(KeyOfHex("fe", &back));
}

TEST(SpareBuffers, GiveMemoryBackEmptyAndKeepToTheirBudget) {
  SpareBuffers spare(2'500);
  EXPECT_EQ(spare.Take().size(), 0u);
  for (int i = 0; i < 4; ++i) spare.Give(std::string(1'000, 'x'));
  EXPECT_LE(spare.bytes(), 2'500u);
  EXPECT_GE(spare.bytes(), 2'000u);
  const std::string again = spare.Take();
  EXPECT_TRUE(again.empty());
  EXPECT_GE(again.capacity(), 1'000u);
  EXPECT_LE(spare.bytes(), 1'500u);
}

}  // namespace
}  // namespace kvlink::tier
