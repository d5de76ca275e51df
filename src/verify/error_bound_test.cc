#include "verify/error_bound.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace kvlink::verify {
namespace {

TEST(UpperErrorBound, HasTheKnownValues) {
  EXPECT_DOUBLE_EQ(UpperErrorBound(0, 0, .95), 1);
  EXPECT_DOUBLE_EQ(UpperErrorBound(5, 5, .95), 1);
  for (const uint64_t n : {1u, 10u, 60u, 300u, 100000u}) {
    EXPECT_NEAR(UpperErrorBound(0, n, .95), 1 - std::pow(.05, 1.0 / static_cast<double>(n)), 1e-9);
  }
  EXPECT_LE(UpperErrorBound(0, 60, .95), .05);
  EXPECT_GT(UpperErrorBound(0, 58, .95), .05);
  EXPECT_LE(UpperErrorBound(0, 150, .95), .02);
  EXPECT_NEAR(UpperErrorBound(1, 10, .95), .3942, 1e-4);  // tables of the binomial distribution
  EXPECT_NEAR(UpperErrorBound(5, 100, .95), .1023, 1e-4);
}

TEST(UpperErrorBound, GrowsWithFailuresAndShrinksWithTrials) {
  for (uint64_t n = 1; n < 120; n += 13) {
    for (uint64_t k = 0; k < n; ++k) {
      ASSERT_GT(UpperErrorBound(k + 1, n, .95), UpperErrorBound(k, n, .95));
      ASSERT_LT(UpperErrorBound(k, n + 1, .95), UpperErrorBound(k, n, .95));
      ASSERT_GT(UpperErrorBound(k, n, .95), static_cast<double>(k) / static_cast<double>(n));
    }
  }
}

TEST(UpperErrorBound, CoversTheTrueRateAsOftenAsItSays) {
  base::Random random(1);
  constexpr int kRounds = 2000;
  for (const double rate : {.02, .1, .5}) {
    int covered = 0;
    for (int round = 0; round < kRounds; ++round) {
      uint64_t failures = 0;
      for (int i = 0; i < 120; ++i) failures += random.Unit() < rate ? 1 : 0;
      covered += UpperErrorBound(failures, 120, .95) >= rate ? 1 : 0;
    }
    EXPECT_GE(covered, static_cast<int>(.94 * kRounds)) << rate;
  }
}

}  // namespace
}  // namespace kvlink::verify
