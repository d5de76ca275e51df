#include "cli/calibrate_decisive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace kvlink::cli {
namespace {

using ::testing::HasSubstr;

PairOutcome Usable(PairKind kind = PairKind::kCode, uint32_t rows = 300) {
  PairOutcome outcome;
  outcome.kind = kind;
  outcome.is_forced = true;
  outcome.trial.was_planned = true;
  outcome.trial.prompt_rows = rows;
  outcome.exact_has_fact = outcome.has_fact = true;
  return outcome;
}

DecisiveCounts Count(const std::vector<PairOutcome>& outcomes) {
  return CountDecisive(outcomes, [](const PairOutcome&) { return true; });
}

TEST(Decisive, CountsEveryUsablePairOnce) {
  PairOutcome stale = Usable();
  stale.has_fact = false;
  stale.has_donor_fact = true;
  PairOutcome neither = Usable();
  neither.has_fact = false;
  PairOutcome fell_back = Usable();
  fell_back.trial.reason = SimilarReason::kBlastRadius;
  PairOutcome not_lent = Usable();
  not_lent.trial.was_planned = false;
  PairOutcome unused = Usable();
  unused.exact_has_fact = false;
  PairOutcome ambiguous = Usable();
  ambiguous.exact_has_donor_fact = true;
  PairOutcome clock = Usable(PairKind::kClock);
  const DecisiveCounts counts =
      Count({Usable(), stale, neither, fell_back, not_lent, unused, ambiguous, clock});
  EXPECT_EQ(counts.pairs, 7u);
  EXPECT_EQ(counts.usable, 4u);
  EXPECT_EQ(counts.accepted, 3u);
  EXPECT_EQ(counts.new_fact, 1u);
  EXPECT_EQ(counts.donor_fact, 1u);
  EXPECT_EQ(counts.neither, 1u);
  EXPECT_EQ(counts.fell_back, 1u);
  EXPECT_EQ(counts.not_lent, 1u);
  EXPECT_EQ(counts.usable, counts.accepted + counts.fell_back);
}

TEST(Decisive, AStaleAnswerCountsEvenWhereTheExactOneHasNoFact) {
  PairOutcome stale = Usable();
  stale.exact_has_fact = stale.has_fact = false;
  stale.has_donor_fact = true;
  EXPECT_EQ(Count({stale}).took_donor_fact, 1u);
  EXPECT_EQ(Count({stale}).usable, 0u);
}

TEST(Decisive, TheReportHasARowPerKindStartAndLengthAndTheSum) {
  const std::vector<PairOutcome> outcomes = {Usable(), Usable(), Usable(PairKind::kState, 900)};
  const std::string text = DecisiveSection(outcomes);
  EXPECT_THAT(text, HasSubstr("| code | given | short | 2 | 2 | 2 | 2 | 0 | 0 | 0 | 0 |"));
  EXPECT_THAT(text, HasSubstr("| state | given | long | 1 | 1 | 1 | 1 | 0 | 0 | 0 | 0 |"));
  EXPECT_THAT(text, HasSubstr("| **all** | | | 3 | 3 | 3 | 3 | 0 | 0 | 0 | 0 |"));
  EXPECT_THAT(text, HasSubstr("3 usable pairs"));
  EXPECT_THAT(DecisiveLine(outcomes), HasSubstr("3 of 3 pairs usable"));
  EXPECT_EQ(DecisiveLine({}), "");
}

}  // namespace
}  // namespace kvlink::cli
