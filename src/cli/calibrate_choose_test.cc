#include "cli/calibrate_choose.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlink::cli {
namespace {

// Trials of the classes values, words, passage, many.
ClassTrials Of(SimilarTrials values, SimilarTrials words = {}, SimilarTrials passage = {},
               SimilarTrials many = {}) {
  return {values, words, passage, many};
}

PairOutcome Accepted(double first_kl, bool same_first) {
  PairOutcome outcome;
  outcome.trial.was_planned = true;
  outcome.trial.edit = EditClass::kValues;
  outcome.trial.distance.first_kl = first_kl;
  outcome.trial.distance.same_first = same_first;
  outcome.trial.distance.first_gap = same_first ? 0 : 0.3;
  return outcome;
}

TEST(Choice, SixtyAcceptsWithoutAFailurePassAndFiftyDoNot) {
  EXPECT_TRUE(Passes({60, 0}, SimilarOptions{}));
  EXPECT_FALSE(Passes({50, 0}, SimilarOptions{}));
  EXPECT_FALSE(Passes({60, 1}, SimilarOptions{}));
  EXPECT_TRUE(Passes({100, 1}, SimilarOptions{}));
  EXPECT_FALSE(Passes({0, 0}, SimilarOptions{}));
}

TEST(Choice, TakesTheLoosestSettingAtWhichNoClassIsLost) {
  const std::vector<ClassTrials> trials = {Of({80, 0}, {80, 0}), Of({90, 0}, {85, 0}),
                                           Of({95, 0}, {90, 9}), Of({99, 0}, {99, 0})};
  const Choice choice = Choose(trials, SimilarOptions{});
  EXPECT_EQ(choice.setting, 1u);
  EXPECT_TRUE(choice.passed[0]);
  EXPECT_TRUE(choice.passed[1]);
  EXPECT_FALSE(choice.passed[2]);
  EXPECT_EQ(choice.trials[0].trials, 90u);
}

TEST(Choice, AClassThatFailsTheStrictestStaysClosedWhateverALooserOneShows) {
  const std::vector<ClassTrials> trials = {Of({80, 0}, {80, 8}), Of({90, 0}, {500, 0})};
  const Choice choice = Choose(trials, SimilarOptions{});
  EXPECT_EQ(choice.setting, 1u);
  EXPECT_FALSE(choice.passed[1]);
  EXPECT_EQ(choice.trials[1].failures, 8u);  // what is written keeps it closed
  EXPECT_FALSE(Passes(choice.trials[1], SimilarOptions{}));
}

TEST(Choice, WithoutAClassThatPassesItStaysAtTheStrictest) {
  const std::vector<ClassTrials> trials = {Of({80, 20}), Of({90, 0})};
  const Choice choice = Choose(trials, SimilarOptions{});
  EXPECT_EQ(choice.setting, 0u);
  EXPECT_FALSE(choice.passed[0]);
}

TEST(Trials, CountAcceptsAndWhatIsWrongWithThem) {
  std::vector<PairOutcome> outcomes = {Accepted(0.01, true), Accepted(0.01, false),
                                       Accepted(0.2, true)};
  PairOutcome refused = Accepted(5, false);
  refused.trial.reason = SimilarReason::kDiverged;
  outcomes.push_back(refused);
  PairOutcome not_planned = Accepted(5, false);
  not_planned.trial.was_planned = false;
  outcomes.push_back(not_planned);
  PairOutcome stale = Accepted(0.01, true);
  stale.has_donor_fact = true;
  outcomes.push_back(stale);
  PairOutcome stale_as_exact = stale;
  stale_as_exact.exact_has_donor_fact = true;
  outcomes.push_back(stale_as_exact);
  const ClassTrials trials = TrialsOf(outcomes, 0);
  EXPECT_EQ(trials[0].trials, 5u);
  EXPECT_EQ(trials[0].failures, 3u);
  EXPECT_EQ(TrialsOf(outcomes, 0.5)[0].failures, 2u) << "a flip within the tie gap is none";
}

TEST(Ladder, GoesFromStrictToLooseAndRaisesTheReuseDistance) {
  const auto ladder = CalibrationLadder(30);
  ASSERT_GE(ladder.size(), 2u);
  for (size_t i = 1; i < ladder.size(); ++i) {
    const SimilarOptions &strict = ladder[i - 1].options, &loose = ladder[i].options;
    EXPECT_GE(strict.seam_rows, loose.seam_rows);
    EXPECT_GE(strict.tail_rows, loose.tail_rows);
    EXPECT_LE(strict.accept_blast_radius, loose.accept_blast_radius);
    EXPECT_LE(strict.refuse_blast_radius, loose.refuse_blast_radius);
    EXPECT_EQ(loose.max_reuse_distance, 30u);
  }
}

TEST(Ladder, NamesTheModeAndTheLayersItReachesThrough) {
  for (const auto& [mode, distance] : {std::pair{ReuseMode::kSeam, 30u},
                                       {ReuseMode::kBlend, 30u},
                                       {ReuseMode::kLayered, 7u},
                                       {ReuseMode::kAnchored, 7u}}) {
    for (const CalibrationSetting& setting : CalibrationLadder(30, mode)) {
      EXPECT_EQ(setting.options.mode, mode);
      EXPECT_EQ(setting.options.max_reuse_distance, distance);
    }
  }
}

}  // namespace
}  // namespace kvlink::cli
