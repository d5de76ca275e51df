// Names of what tiers say, which are values of metrics' labels and words of messages: each has one,
// and no two the same.
#include <gtest/gtest.h>

#include <cstddef>

#include "base/testing/names.h"
#include "tier/block_codec.h"
#include "tier/block_tier.h"
#include "tier/breaker.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

template <typename Enum>
void ExpectNames(size_t count, const char* (*name_of)(Enum)) {
  base::ExpectNamesOfTheirOwn(count, name_of);
  EXPECT_STREQ(name_of(static_cast<Enum>(count)), "unknown");
}

TEST(TierNames, AreThereOncePerValue) {
  ExpectNames(static_cast<size_t>(ErrorReason::kCount), ErrorReasonName);
  ExpectNames(static_cast<size_t>(TierOp::kCount), TierOpName);
  ExpectNames(static_cast<size_t>(BreakerState::kHalfOpen) + 1, BreakerStateName);
  ExpectNames(static_cast<size_t>(Compression::kZstdPlanes) + 1, CompressionName);
}

}  // namespace
}  // namespace kvlink::tier
