#include "verify/fallback_budget.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace kvlink::verify {
namespace {

TEST(FallbackBudget, NothingMayBeWastedBeforeAnythingIsComputed) {
  FallbackBudget budget(.05);
  EXPECT_FALSE(budget.TryReserve(1));
  budget.CountComputed(1000);
  EXPECT_TRUE(budget.TryReserve(52));
  EXPECT_FALSE(budget.TryReserve(1));
  budget.Settle(52, 0);
  EXPECT_TRUE(budget.TryReserve(52)) << "what was not wasted can be reserved again";
}

// A bad day: every attempt fails, and is followed by a full run.
TEST(FallbackBudget, ADayOnWhichEverythingFailsCostsItsShare) {
  FallbackBudget budget(.05);
  base::Random random(1);
  uint64_t attempts = 0;
  for (int request = 0; request < 5000; ++request) {
    const uint64_t rows = 100 + random.Below(3000);
    const uint64_t cost = rows * (3 + random.Below(60)) / 100;
    if (budget.TryReserve(cost)) {
      ++attempts;
      budget.Settle(cost, cost);
    }
    budget.CountComputed(rows);
    ASSERT_LE(budget.wasted_share(), .05);
  }
  EXPECT_GT(attempts, 500u) << "and yet it keeps trying";
  EXPECT_GT(budget.wasted_share(), .045);
}

TEST(FallbackBudget, HoldsWithManyAttemptsUnderWay) {
  FallbackBudget budget(.05);
  base::Random random(2);
  std::vector<uint64_t> under_way;
  for (int step = 0; step < 20000; ++step) {
    if (random.OneIn(3)) budget.CountComputed(random.Below(1000));
    const uint64_t cost = 1 + random.Below(300);
    if (random.OneIn(2) && budget.TryReserve(cost)) under_way.push_back(cost);
    if (!under_way.empty() && random.OneIn(3)) {
      const uint64_t reserved = under_way.back();
      under_way.pop_back();
      budget.Settle(reserved, random.Below(reserved + 1));
    }
    const auto lost = static_cast<double>(budget.wasted() + budget.reserved());
    ASSERT_LE(lost, .05 * (static_cast<double>(budget.computed()) + lost) + 1e-6);
  }
  for (const uint64_t reserved : under_way) budget.Settle(reserved, 0);
  EXPECT_EQ(budget.reserved(), 0u);
}

}  // namespace
}  // namespace kvlink::verify
