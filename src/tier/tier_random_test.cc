// Tiers against a naive map; the ones on a device and a network have theirs beside their tests.
#include <gtest/gtest.h>

#include "tier/memory_tier.h"
#include "tier/testing/fault_tier.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

TEST(MemoryTier, AgreesWithANaiveMapOverRandomOperations) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    std::unique_ptr<BlockTier> tier = std::make_unique<MemoryTier>(1 << 24);
    CompareWithNaiveMap(tier, seed, 1000, 3000);
  }
}

TEST(FaultTier, WithoutAFaultIsTheTierInside) {
  std::unique_ptr<BlockTier> tier =
      std::make_unique<FaultTier>(std::make_unique<MemoryTier>(1 << 24));
  CompareWithNaiveMap(tier, 1, 1000, 3000);
}

TEST(FaultTier, EachFaultIsWhatItsNameSays) {
  FaultTier tier(std::make_unique<MemoryTier>(1 << 20));
  const BlockKey key = NumberedKey(1);
  tier.Set(Fault::kLost, 1);
  EXPECT_EQ(PutOne(tier, key, "abcdef")[0].outcome, Outcome::kOk);
  EXPECT_EQ(GetOne(tier, key).outcome, Outcome::kMiss);
  tier.Set(Fault::kFull, 1);
  EXPECT_EQ(PutOne(tier, key, "abcdef")[0].reason, ErrorReason::kFull);
  EXPECT_EQ(PutOne(tier, key, "abcdef")[0].outcome, Outcome::kOk);
  tier.Set(Fault::kShortRead, 1);
  EXPECT_LT(GetOne(tier, key).bytes.size(), 6u);
  tier.Set(Fault::kBitFlip, 1);
  const std::string flipped = GetOne(tier, key).bytes;
  EXPECT_EQ(flipped.size(), 6u);
  EXPECT_NE(flipped, "abcdef");
  tier.Set(Fault::kTimeout, 1);
  EXPECT_EQ(tier.Get({&key, 1}, In(std::chrono::milliseconds(1)))[0].reason, ErrorReason::kTimeout);
  tier.Set(Fault::kUnavailable, 1);
  EXPECT_EQ(GetOne(tier, key).reason, ErrorReason::kUnavailable);
  EXPECT_EQ(GetOne(tier, key).bytes, "abcdef");
}

}  // namespace
}  // namespace kvlink::tier
