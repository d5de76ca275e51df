#include "base/exp_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace kvlink::base {
namespace {

ExpSums Naive(const std::vector<float>& values) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0, weighted = 0;
  for (const float value : values) largest = std::max(largest, double{value});
  for (const float value : values) {
    const double x = value - largest;
    sum += std::exp(x);
    weighted += x * std::exp(x);
  }
  return {.finite = true,
          .log_sum = largest + std::log(sum),
          .entropy = std::log(sum) - weighted / sum};
}

TEST(SumExponentials, EqualsTheSumInDouble) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    // Sizes around the block and far from it; flat rows and rows with a few likely tokens.
    const size_t size = 1 + random.Below(round % 3 == 0 ? 600 : 20);
    const double spread = round % 2 == 0 ? 4 : 60;
    const double level = 100 * (random.Unit() - 0.5);
    std::vector<float> values(size);
    for (float& value : values) {
      value = static_cast<float>(level + spread * (random.Unit() - 0.5));
    }
    const ExpSums sums = SumExponentials(values), naive = Naive(values);
    ASSERT_TRUE(sums.finite);
    ASSERT_NEAR(sums.log_sum, naive.log_sum, 1e-6) << "round " << round << ", " << size;
    ASSERT_NEAR(sums.entropy, naive.entropy, 2e-6) << "round " << round << ", " << size;
  }
}

TEST(SumExponentials, OfAWholeVocabularyKeepsItsPrecision) {
  Random random(2);
  std::vector<float> values(49'152);
  for (float& value : values) value = static_cast<float>(12 * (random.Unit() - 0.5));
  for (int i = 0; i < 5; ++i) values[random.Below(values.size())] += 10;
  const ExpSums sums = SumExponentials(values), naive = Naive(values);
  EXPECT_NEAR(sums.log_sum, naive.log_sum, 1e-6);
  EXPECT_NEAR(sums.entropy, naive.entropy, 1e-5);
}

TEST(SumExponentials, ExponentialsAreRightToTheirLastBits) {
  // Two values: exp(log_sum - 0) - 1 is the second one's exponential.
  for (int i = 0; i <= 400; ++i) {
    const float x = -0.03f * static_cast<float>(i);
    const double sum = SumExponentials(std::vector<float>{0, x}).log_sum;
    ASSERT_NEAR(std::expm1(sum) / std::exp(double{x}), 1, 4e-7) << x;
  }
}

TEST(SumExponentials, WhatIsFarBelowTheLargestCountsForNothing) {
  const float far = std::numeric_limits<float>::lowest();
  const ExpSums sums = SumExponentials(std::vector<float>{-100, 30, far, -58});
  EXPECT_TRUE(sums.finite);
  EXPECT_EQ(sums.log_sum, 30);
  EXPECT_NEAR(sums.entropy, 0, 1e-30);
}

TEST(SumExponentials, SaysWhereverAValueIsNotFinite) {
  for (const float bad : {std::nanf(""), -std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (size_t size : {1u, 15u, 16u, 17u, 40u}) {
      for (size_t at = 0; at < size; ++at) {
        std::vector<float> values(size, 1);
        values[at] = bad;
        const ExpSums sums = SumExponentials(values);
        EXPECT_FALSE(sums.finite) << bad << " at " << at << " of " << size;
        EXPECT_TRUE(std::isnan(sums.log_sum) && std::isnan(sums.entropy));
      }
    }
  }
}

TEST(SumExponentials, OfEqualValuesIsTheLogarithmOfTheirNumber) {
  const ExpSums sums = SumExponentials(std::vector<float>(64, 3));
  EXPECT_NEAR(sums.log_sum, 3 + std::log(64), 1e-12);
  EXPECT_NEAR(sums.entropy, std::log(64), 1e-12);
  EXPECT_EQ(SumExponentials({}).log_sum, 0);
}

TEST(LargestOf, IsTheLargestOfBothSigns) {
  EXPECT_EQ(LargestOf({}), -std::numeric_limits<float>::infinity());
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> values(1 + random.Below(40));
    const double level = 3 * (random.Unit() - 0.5);
    for (float& value : values) value = static_cast<float>(random.Unit() - 0.5 + level);
    ASSERT_EQ(LargestOf(values), std::ranges::max(values));
  }
  EXPECT_EQ(LargestOf(std::vector<float>{-2, -0.0f, -1}), 0);
  EXPECT_EQ(LargestOf(std::vector<float>{-std::numeric_limits<float>::infinity()}),
            -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace kvlink::base
