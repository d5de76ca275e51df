// Names of what tiers say, which are values of metrics' labels and words of messages: each has one,
// and no two the same.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tier/block_codec.h"
#include "tier/block_tier.h"
#include "tier/breaker.h"
#include "tier/tier_store.h"

namespace kvlink::tier {
namespace {

template <typename Enum>
void ExpectNamesOfTheirOwn(size_t count, const char* (*name_of)(Enum)) {
  std::set<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = name_of(static_cast<Enum>(i));
    EXPECT_NE(name, "unknown") << i;
    EXPECT_TRUE(names.insert(name).second) << name << " twice, the second time as " << i;
  }
  EXPECT_STREQ(name_of(static_cast<Enum>(count)), "unknown");
}

TEST(TierNames, AreThereOncePerValue) {
  ExpectNamesOfTheirOwn(static_cast<size_t>(ErrorReason::kCount), ErrorReasonName);
  ExpectNamesOfTheirOwn(static_cast<size_t>(TierOp::kCount), TierOpName);
  ExpectNamesOfTheirOwn(static_cast<size_t>(BreakerState::kHalfOpen) + 1, BreakerStateName);
  ExpectNamesOfTheirOwn(static_cast<size_t>(Compression::kZstdPlanes) + 1, CompressionName);
}

}  // namespace
}  // namespace kvlink::tier
