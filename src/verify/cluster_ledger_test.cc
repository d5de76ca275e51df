#include "verify/cluster_ledger.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/random.h"
#include "verify/error_bound.h"

namespace kvlink::verify {
namespace {

using std::chrono::seconds;

class ClusterLedgerTest : public ::testing::Test {
 protected:
  void Agree(int count, Cluster cluster) {
    for (int i = 0; i < count; ++i) ledger_.Record(cluster, true, clock_.now());
  }
  void Disagree(Cluster cluster) { ledger_.Record(cluster, false, clock_.now()); }
  bool IsOpen(Cluster cluster) { return ledger_.IsOpen(cluster, clock_.now()); }

  base::FakeClock clock_;
  SimilarOptions options_;
  ClusterLedger ledger_{options_};
  const Cluster shop_{1, EditClass::kWords}, bank_{2, EditClass::kWords};
};

TEST_F(ClusterLedgerTest, WithoutCalibrationEverythingIsClosed) {
  EXPECT_FALSE(IsOpen(shop_));
  EXPECT_EQ(ledger_.Bound(shop_), 1);
}

TEST_F(ClusterLedgerTest, CalibrationOpensTheClassesThatPassed) {
  ledger_.Calibrate(EditClass::kWords, {100, 0});
  ledger_.Calibrate(EditClass::kPassage, {100, 3});
  ledger_.Calibrate(EditClass::kValues, {30, 0});
  EXPECT_TRUE(IsOpen(shop_));
  EXPECT_FALSE(IsOpen({1, EditClass::kPassage})) << "three failures of a hundred";
  EXPECT_FALSE(IsOpen({1, EditClass::kValues})) << "too few trials";
}

TEST_F(ClusterLedgerTest, FailuresCloseTheirOwnClusterOnly) {
  ledger_.Calibrate(EditClass::kWords, {100, 0});
  EXPECT_TRUE(IsOpen(shop_));
  EXPECT_TRUE(IsOpen(bank_));
  Disagree(shop_);
  EXPECT_TRUE(IsOpen(shop_)) << "one of 101: the bound is still under 5 %";
  Disagree(shop_);
  EXPECT_FALSE(IsOpen(shop_));
  EXPECT_TRUE(IsOpen(bank_));
  EXPECT_EQ(ledger_.num_closings(), 1u);
}

TEST_F(ClusterLedgerTest, OwnTrialsReplaceTheCalibration) {
  ledger_.Calibrate(EditClass::kWords, {10000, 0});
  for (int i = 0; i < 57; ++i) ledger_.Record(shop_, true, clock_.now());
  Disagree(shop_);
  EXPECT_TRUE(IsOpen(shop_));
  Agree(2, shop_);  // now it has 60 of its own, with one failure
  EXPECT_FALSE(IsOpen(shop_));
}

TEST_F(ClusterLedgerTest, OldTrialsFadeAndAFailureIsNeverRoundedAway) {
  ledger_.Calibrate(EditClass::kWords, {100, 0});
  const auto bound = [this](uint64_t failures, uint64_t trials) {
    return UpperErrorBound(failures, trials, options_.confidence);
  };
  const int most = 4 * static_cast<int>(options_.min_trials);
  const uint64_t half = 2 * uint64_t{options_.min_trials};
  Agree(most, shop_);
  EXPECT_EQ(ledger_.Bound(shop_), bound(0, 2 * half));
  Agree(1, shop_);
  EXPECT_EQ(ledger_.Bound(shop_), bound(0, half));
  Agree(most - static_cast<int>(half), shop_);
  Disagree(shop_);
  EXPECT_EQ(ledger_.Bound(shop_), bound(1, half)) << "one of 241 counts as one of 120";
  EXPECT_TRUE(IsOpen(shop_));
  Disagree(shop_);
  EXPECT_EQ(ledger_.Bound(shop_), bound(0, 0)) << "two are too many: it starts over";
  EXPECT_FALSE(IsOpen(shop_));
}

TEST_F(ClusterLedgerTest, OpensAgainAfterItsTimeAndEnoughCleanTrials) {
  ledger_.Calibrate(EditClass::kWords, {100, 0});
  IsOpen(shop_);
  Disagree(shop_);
  Disagree(shop_);
  Agree(59, shop_);
  clock_.Advance(options_.closed_for);
  EXPECT_FALSE(IsOpen(shop_)) << "the time is up, but 59 trials are too few";
  Agree(1, shop_);
  EXPECT_TRUE(IsOpen(shop_));
  Disagree(shop_);
  EXPECT_FALSE(IsOpen(shop_));
  Agree(60, shop_);
  clock_.Advance(options_.closed_for);
  EXPECT_FALSE(IsOpen(shop_)) << "the second time lasts twice as long";
  clock_.Advance(options_.closed_for);
  EXPECT_TRUE(IsOpen(shop_));
}

TEST_F(ClusterLedgerTest, AClusterThatKeepsFailingStaysClosed) {
  EXPECT_FALSE(IsOpen(shop_));
  for (int i = 0; i < 2000; ++i) {
    ledger_.Record(shop_, i % 20 != 0, clock_.now());  // 5 % fail
    clock_.Advance(seconds(10));
    ASSERT_FALSE(IsOpen(shop_)) << i;
  }
}

TEST_F(ClusterLedgerTest, ShadowsTheFirstAcceptsAndThenOneInFifty) {
  int shadows = 0;
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(ledger_.CountAccept(shop_));
  for (int i = 0; i < 1000; ++i) shadows += ledger_.CountAccept(shop_) ? 1 : 0;
  EXPECT_EQ(shadows, 20);
}

TEST_F(ClusterLedgerTest, AnErrorRateAboveTheLimitIsFoundOut) {
  ledger_.Calibrate(EditClass::kWords, {200, 0});
  base::Random random(1);
  int open_at_end = 0, trials = 0;
  constexpr uint64_t kClusters = 100;
  for (uint64_t application = 0; application < kClusters; ++application) {
    const Cluster cluster{100 + application, EditClass::kWords};
    for (int i = 0; i < 100 && IsOpen(cluster); ++i, ++trials) {
      ledger_.Record(cluster, random.Unit() >= .15, clock_.now());
    }
    open_at_end += IsOpen(cluster) ? 1 : 0;
  }
  EXPECT_EQ(open_at_end, 0);
  EXPECT_LT(trials, 100 * 60);
}

TEST_F(ClusterLedgerTest, ForgetsOldClustersButNeverAClosedOne) {
  ledger_.Calibrate(EditClass::kWords, {100, 0});
  IsOpen(shop_);
  Disagree(shop_);
  Disagree(shop_);
  for (uint64_t application = 10; application < 10 + 2 * ClusterLedger::kMostClusters;
       ++application) {
    EXPECT_TRUE(IsOpen({application, EditClass::kWords}));
  }
  EXPECT_LE(ledger_.num_clusters(), ClusterLedger::kMostClusters);
  EXPECT_FALSE(IsOpen(shop_));
}

}  // namespace
}  // namespace kvlink::verify
