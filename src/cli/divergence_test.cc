#include "cli/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvlink::cli {
namespace {

TEST(Divergence, IsTheSumThatItsDefinitionSays) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4); a constant added to logits changes nothing.
  const std::vector<float> p = {std::log(2.f) + 7, 7, 7}, q = {0, std::log(2.f), 0};
  EXPECT_NEAR(Divergence(p, q), 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-7);
  EXPECT_EQ(Divergence(p, p), 0);
}

TEST(Divergence, IsInfiniteForWhatIsNoDistribution) {
  const std::vector<float> p = {0, 1}, q = {0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isinf(Divergence(p, q)));
}

TEST(Likeliest, OfEqualOnesTheLowest) {
  const std::vector<float> logits = {1, 3, 2, 3};
  EXPECT_EQ(Likeliest(logits), 1);
}

TEST(GapShift, LooksAtTheTwoMostLikelyTokens) {
  const std::vector<float> exact = {1, 5, 3}, other = {9, 4.5f, 4};
  EXPECT_NEAR(GapShift(exact, other), 1.5, 1e-6);
  EXPECT_EQ(GapShift(exact, exact), 0);
}

TEST(ListedDivergence, LumpsWhatIsNotListedByBoth) {
  const float half = std::log(0.5f), quarter = std::log(0.25f), eighth = std::log(0.125f);
  const std::vector<ListedToken> p = {{1, half}, {2, quarter}}, q = {{2, half}, {1, quarter}};
  EXPECT_NEAR(ListedDivergence(p, q), 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
  // Token 3 of the other is lumped: 0.5 log(0.5 / 0.25) + 0.5 log(0.5 / 0.75).
  const std::vector<ListedToken> other = {{1, quarter}, {3, eighth}};
  EXPECT_NEAR(ListedDivergence(p, other), 0.5 * std::log(2.0) + 0.5 * std::log(0.5 / 0.75), 1e-6);
  EXPECT_NEAR(ListedDivergence(p, p), 0, 1e-6);
}

}  // namespace
}  // namespace kvlink::cli
