#include "verify/distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace kvlink::verify {
namespace {

std::vector<float> RandomLogits(base::Random& random, size_t count, double spread) {
  std::vector<float> logits(count);
  for (float& logit : logits) logit = static_cast<float>(spread * (random.Unit() - 0.5));
  return logits;
}

std::vector<double> Softmax(const std::vector<float>& logits) {
  double sum = 0;
  std::vector<double> p;
  for (const float logit : logits) sum += std::exp(double{logit});
  for (const float logit : logits) p.push_back(std::exp(double{logit}) / sum);
  return p;
}

double NaiveJs(const std::vector<float>& a, const std::vector<float>& b) {
  const auto p = Softmax(a), q = Softmax(b);
  double js = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double m = (p[i] + q[i]) / 2;
    js += p[i] / 2 * std::log(p[i] / m) + q[i] / 2 * std::log(q[i] / m);
  }
  return js;
}

TopLogits Top(const std::vector<float>& logits, uint32_t count) {
  const Distribution distribution = DistributionOf(logits, count);
  EXPECT_TRUE(distribution.finite);
  return distribution.top;
}

TEST(JensenShannon, EqualsItsDefinitionOnWholeVocabularies) {
  base::Random random(1);
  for (int round = 0; round < 100; ++round) {
    const auto a = RandomLogits(random, 50, 10), b = RandomLogits(random, 50, 10);
    EXPECT_NEAR(JensenShannon(Top(a, 50), Top(b, 50)), NaiveJs(a, b), 1e-6);
    EXPECT_NEAR(JensenShannon(Top(a, 50), Top(a, 50)), 0, 1e-9);
  }
}

TEST(JensenShannon, IsNearItsDefinitionWhenTheUnlistedMassIsSmall) {
  base::Random random(2);
  for (int round = 0; round < 50; ++round) {
    auto a = RandomLogits(random, 1000, 4);
    for (size_t i = 0; i < 20; ++i) a[random.Below(1000)] += 8;
    auto b = a;
    for (float& logit : b) logit += static_cast<float>(random.Unit() - 0.5);
    const TopLogits ta = Top(a, 64), tb = Top(b, 64);
    double listed = 0;
    for (const auto& entry : ta.entries) listed += std::exp(entry.logit - ta.log_sum);
    EXPECT_NEAR(JensenShannon(ta, tb), NaiveJs(a, b), 2 * (1 - listed) + 1e-6);
  }
}

TEST(JensenShannon, OfStrangersIsNearItsLargest) {
  std::vector<float> a(100, -20), b(100, -20);
  a[3] = 20;
  b[4] = 20;
  EXPECT_NEAR(JensenShannon(Top(a, 8), Top(b, 8)), std::numbers::ln2, 1e-6);
}

TEST(DistributionOf, ListsTheMostLikelyTokensInTheirOrder) {
  const TopLogits top = Top({1, 5, 3, 5}, 3);
  ASSERT_EQ(top.entries.size(), 3u);
  EXPECT_EQ(top.entries[0].token, 1);
  EXPECT_EQ(top.entries[1].token, 3);
  EXPECT_EQ(top.entries[2].token, 2);
  EXPECT_NEAR(top.log_sum, std::log(std::exp(1) + 2 * std::exp(5) + std::exp(3)), 1e-6);
  EXPECT_EQ(Margin(top), 0);
}

TEST(DistributionOf, ListsWhatSortingAllOfThemPutsFirst) {
  base::Random random(3);
  for (int round = 0; round < 200; ++round) {
    // Few different values, so that there are ties at the end of the list, too.
    std::vector<float> logits(1 + random.Below(1200));
    for (float& logit : logits) logit = static_cast<float>(random.Below(40));
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](TokenId token) { return logits[static_cast<size_t>(token)]; });
    const auto count = static_cast<uint32_t>(random.Below(70));
    const TopLogits top = Top(logits, count);
    ASSERT_EQ(top.entries.size(), std::min<size_t>(count, logits.size()));
    for (size_t i = 0; i < top.entries.size(); ++i) {
      ASSERT_EQ(top.entries[i].token, order[i]) << "place " << i << " of round " << round;
      ASSERT_EQ(top.entries[i].logit, logits[static_cast<size_t>(order[i])]);
    }
  }
}

TEST(DistributionOf, SaysWhenALogitIsNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Distribution distribution = DistributionOf(std::vector<float>{1, bad}, 2);
    EXPECT_TRUE(distribution.top.entries.empty());
    EXPECT_FALSE(distribution.finite);
  }
}

TEST(DistributionOf, HasTheEntropyOfTheSoftmax) {
  const auto entropy_of = [](const std::vector<float>& logits) {
    return DistributionOf(logits, 2).entropy;
  };
  EXPECT_NEAR(entropy_of(std::vector<float>(64, 3)), std::log(64), 1e-9);
  EXPECT_NEAR(entropy_of({100, 0}), 0, 1e-9);
  EXPECT_EQ(entropy_of({}), 0);
}

}  // namespace
}  // namespace kvlink::verify
