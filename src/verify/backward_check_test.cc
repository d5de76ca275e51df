#include "verify/backward_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "verify/distribution.h"

namespace kvlink::verify {
namespace {

using Action = Verdict::Action;

TopLogits Peaked(TokenId token, float height = 8) {
  std::vector<float> logits(100, 0);
  logits[static_cast<size_t>(token)] = height;
  return DistributionOf(logits, 16).top;
}

Evidence Good() {
  Evidence evidence;
  evidence.blast_radius = 0.01;
  evidence.first = Peaked(7);
  evidence.entropy = 0.4;
  return evidence;
}

Verdict Of(const Evidence& evidence, const SimilarOptions& options = {}) {
  return Judge(evidence, options);
}

TEST(Judge, AcceptsWhereNothingThatMattersChanged) {
  const Verdict verdict = Of(Good());
  EXPECT_EQ(verdict.action, Action::kAccept);
  EXPECT_EQ(verdict.reason, SimilarReason::kNone);
}

TEST(Judge, RefusesGarbage) {
  std::vector<Evidence> garbage(6, Good());
  garbage[0].finite = false;
  garbage[1].nll_increase = 0.6;
  garbage[2].nll_increase = std::nan("");
  garbage[3].donor_entropy = 0.4;
  garbage[3].entropy = 2.5;
  garbage[4].entropy = std::nan("");
  garbage[5].first = {};
  for (Evidence& evidence : garbage) {
    EXPECT_EQ(Of(evidence).action, Action::kFallBack);
    EXPECT_EQ(Of(evidence).reason, SimilarReason::kGarbled);
    evidence.before = Peaked(7);  // agreement does not make it better
    EXPECT_EQ(Of(evidence).action, Action::kFallBack);
  }
}

TEST(Judge, RefusesALargeBlast) {
  Evidence evidence = Good();
  evidence.blast_radius = 0.6;
  EXPECT_EQ(Of(evidence).reason, SimilarReason::kBlastRadius);
  EXPECT_EQ(Of(evidence).action, Action::kFallBack);
  evidence.blast_radius = std::nan("");
  EXPECT_EQ(Of(evidence).action, Action::kFallBack);
}

TEST(Judge, InTheGreyZoneAsksForMoreRowsAndBelievesOnlyAgreement) {
  Evidence evidence = Good();
  evidence.blast_radius = 0.2;
  EXPECT_EQ(Of(evidence).action, Action::kEnlarge);
  evidence.before = Peaked(7);
  EXPECT_EQ(Of(evidence).action, Action::kAccept);
  evidence.before = Peaked(7, 3);
  EXPECT_EQ(Of(evidence).reason, SimilarReason::kDiverged) << "the same token, far less sure";
  evidence.before = Peaked(8);
  EXPECT_EQ(Of(evidence).action, Action::kFallBack);
  EXPECT_EQ(Of(evidence).reason, SimilarReason::kDiverged);
}

TEST(Judge, WithoutAMeasurementAsksForMoreRows) {
  Evidence evidence = Good();
  evidence.blast_radius.reset();
  EXPECT_EQ(Of(evidence).action, Action::kEnlarge);
  evidence.before = Peaked(7);
  EXPECT_EQ(Of(evidence).action, Action::kAccept);
}

TEST(Judge, StrictAcceptsOnlyAfterTheConvergenceTest) {
  SimilarOptions strict;
  strict.policy = SimilarPolicy::kStrict;
  Evidence evidence = Good();
  EXPECT_EQ(Of(evidence, strict).action, Action::kEnlarge);
  evidence.before = Peaked(7);
  EXPECT_EQ(Of(evidence, strict).action, Action::kAccept);
}

TEST(Judge, TakesTheDonorForASignalNotAReference) {
  Evidence evidence = Good();
  evidence.donor = Peaked(7);
  EXPECT_EQ(Of(evidence).action, Action::kAccept) << "nothing changed, so the answer is the same";
  evidence.blast_radius = 0.2;
  evidence.before = Peaked(7);
  EXPECT_EQ(Of(evidence).reason, SimilarReason::kStale)
      << "much changed, and yet the answer did not";
  evidence.donor = Peaked(9);
  EXPECT_EQ(Of(evidence).action, Action::kAccept) << "much changed, and so did the answer";
  evidence.blast_radius = 0.01;
  EXPECT_EQ(Of(evidence).reason, SimilarReason::kGarbled) << "nothing changed but the answer";
}

TEST(Judge, LooksAtTheScoreOnlyWhenItIsCalibrated) {
  SimilarOptions options;
  options.max_score = 0.5;
  EXPECT_EQ(Of(Good(), options).score, 0);
  options.score_weights = {.bias = -3, .blast_radius = 10, .indecision = 4};
  EXPECT_EQ(Of(Good(), options).action, Action::kAccept);
  Evidence evidence = Good();
  evidence.first = Peaked(7, 0.01f);
  EXPECT_EQ(Of(evidence, options).reason, SimilarReason::kScore);
}

TEST(Score, GrowsWithEveryFeature) {
  base::Random random(1);
  const SimilarOptions::ScoreWeights weights = {-2, 3, 3, 3, 3, 3};
  for (int round = 0; round < 200; ++round) {
    Evidence evidence = Good();
    evidence.blast_radius = random.Unit();
    evidence.nll_increase = random.Unit();
    evidence.mask_similarity = random.Unit();
    const double score = ScoreOf(evidence, weights);
    Evidence worse = evidence;
    switch (random.Below(5)) {
      case 0:
        worse.blast_radius = *worse.blast_radius + 0.1;
        break;
      case 1:
        worse.nll_increase += 0.1;
        break;
      case 2:
        worse.mask_similarity -= 0.1;
        break;
      case 3:
        worse.first = Peaked(7, 1);
        break;
      default:
        worse.before = Peaked(8);
    }
    ASSERT_GT(ScoreOf(worse, weights), score);
    ASSERT_LE(ScoreOf(worse, weights), 1);
  }
}

// No path accepts what one of the gates alone forbids.
TEST(Judge, NeverAcceptsBeyondAGate) {
  base::Random random(2);
  int accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    Evidence evidence = Good();
    evidence.finite = !random.OneIn(10);
    evidence.nll_increase = random.Unit();
    if (random.OneIn(4)) {
      evidence.blast_radius.reset();
    } else {
      evidence.blast_radius = random.Unit();
    }
    evidence.first = Peaked(static_cast<TokenId>(random.Below(3)));
    if (random.OneIn(2)) evidence.before = Peaked(static_cast<TokenId>(random.Below(3)));
    if (random.OneIn(2)) evidence.donor = Peaked(static_cast<TokenId>(random.Below(3)));
    SimilarOptions options;
    if (random.OneIn(3)) options.policy = SimilarPolicy::kStrict;
    const Verdict verdict = Judge(evidence, options);
    ASSERT_EQ(verdict.action == Action::kAccept, verdict.reason == SimilarReason::kNone);
    if (evidence.before) {
      ASSERT_NE(verdict.action, Action::kEnlarge) << "once is enough";
    }
    if (verdict.action != Action::kAccept) continue;
    ++accepted;
    ASSERT_TRUE(evidence.finite);
    ASSERT_LE(evidence.nll_increase, options.max_nll_increase);
    ASSERT_LE(evidence.blast_radius.value_or(0), options.refuse_blast_radius);
    const bool is_small = evidence.blast_radius.value_or(1) <= options.accept_blast_radius;
    ASSERT_TRUE(evidence.before || (is_small && options.policy != SimilarPolicy::kStrict));
    ASSERT_TRUE(!evidence.before || SameFirst(*evidence.before, evidence.first));
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace kvlink::verify
