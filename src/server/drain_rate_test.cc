#include "server/drain_rate.h"

#include <gtest/gtest.h>

namespace kvlink::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(DrainRate, WhileNothingIsKnownASecondIsSaid) {
  base::FakeClock clock;
  DrainRate rate(clock.clock());
  EXPECT_EQ(rate.RetryAfter(1), 1);
  rate.Left(1);
  EXPECT_EQ(rate.RetryAfter(100), 1);
  EXPECT_EQ(rate.rate(), 0);
}

TEST(DrainRate, TheTimeFollowsHowFastPlacesComeFree) {
  for (const int per_minute : {6, 60, 600}) {
    base::FakeClock clock;
    DrainRate rate(clock.clock());
    for (int i = 0; i < 100; ++i) {
      rate.Left(1);
      clock.Advance(milliseconds(60000 / per_minute));
    }
    EXPECT_NEAR(rate.rate() * 60, per_minute, per_minute * 0.05);
    EXPECT_NEAR(rate.RetryAfter(20), 1200 / per_minute, 1 + 60 / per_minute) << per_minute;
  }
}

TEST(DrainRate, ThoseWhoAreRefusedAtOnceAreToldDifferentTimes) {
  base::FakeClock clock;
  DrainRate rate(clock.clock());
  for (int i = 0; i < 50; ++i) {
    rate.Left(1);
    clock.Advance(seconds(2));
  }
  int last = 0;
  for (int i = 0; i < 10; ++i) {
    const int told = rate.RetryAfter(1);
    EXPECT_GT(told, last);
    last = told;
  }
  EXPECT_NEAR(last, 20, 2);
  clock.Advance(seconds(60));  // by then their times have passed
  rate.Left(30);
  EXPECT_LT(rate.RetryAfter(1), 10);
}

TEST(DrainRate, WhenNothingLeavesAnyMoreTheTimeGrows) {
  base::FakeClock clock;
  DrainRate rate(clock.clock());
  for (int i = 0; i < 10; ++i) {
    rate.Left(1);
    clock.Advance(seconds(1));
  }
  const int before = rate.RetryAfter(1);
  clock.Advance(seconds(1000));
  EXPECT_GT(rate.RetryAfter(1), 10 * before);
  for (int i = 0; i < 1000; ++i) EXPECT_LE(rate.RetryAfter(50), DrainRate::kMostSeconds);
}

}  // namespace
}  // namespace kvlink::server
