#include "cli/calibrate_modes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlink::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

KvShape SmallShape() {
  KvShape shape;
  shape.num_layers = 2;
  shape.num_kv_heads = 1;
  shape.head_dim = 8;
  return shape;
}

ReuseVariant Variant(ReuseMode mode, uint32_t distance, bool is_usual) {
  ReuseVariant variant;
  variant.mode = mode;
  variant.distance = distance;
  variant.is_usual = is_usual;
  return variant;
}

PairOutcome Decisive(SimilarReason reason, bool has_fact, bool has_donor_fact) {
  PairOutcome outcome;
  outcome.kind = PairKind::kCode;
  outcome.trial.was_planned = reason != SimilarReason::kMaskMismatch;
  outcome.trial.reason = reason;
  outcome.trial.distance.first_kl = 2e-3;
  outcome.exact_has_fact = true;
  outcome.has_fact = has_fact;
  outcome.has_donor_fact = has_donor_fact;
  return outcome;
}

TEST(ModeExperiments, ExactReuseAddsWholePagesFromTheOneInWhichTheExactRowsEnd) {
  const KvShape shape = SmallShape();
  const uint32_t block = shape.tokens_per_block;
  SimilarTrial trial;
  trial.prompt_rows = 3 * block - 1;  // and one more row
  trial.exact_rows = 0;
  EXPECT_EQ(ExactBytes(shape, trial), 3 * shape.page_bytes());
  trial.prompt_rows = 3 * block;
  EXPECT_EQ(ExactBytes(shape, trial), 4 * shape.page_bytes());
  trial.exact_rows = block + 1;
  EXPECT_EQ(ExactBytes(shape, trial), 3 * shape.page_bytes());
}

TEST(ModeExperiments, EachModeSaysWhoseFactItsAnswersHoldAndWhatFellBackFor) {
  ReuseVariant seam = Variant(ReuseMode::kSeam, 30, true);
  seam.decisive = {Decisive(SimilarReason::kNone, true, false),
                   Decisive(SimilarReason::kNone, true, false),
                   Decisive(SimilarReason::kNone, false, true),
                   Decisive(SimilarReason::kNone, false, false),
                   Decisive(SimilarReason::kGarbled, true, false),
                   Decisive(SimilarReason::kGarbled, true, false),
                   Decisive(SimilarReason::kDiverged, false, true),
                   Decisive(SimilarReason::kMaskMismatch, false, false)};
  const std::string table = DecisiveModesTable({seam, Variant(ReuseMode::kAnchored, 15, false)});
  EXPECT_THAT(table, HasSubstr("| seam | 8 | 4 | 2 | 1 | 1 | 3 | diverged 1, garbled 2 | 2 | 1 | "
                               "1 | 2.0e-03 |"));
  EXPECT_THAT(table, Not(HasSubstr("anchored"))) << "it was not tried";
}

TEST(ModeExperiments, TheTableOfDistancesSaysWhatIsSavedOrWhyNothingRan) {
  ReuseVariant seam = Variant(ReuseMode::kSeam, 30, true);
  seam.planned = 2;
  seam.accepted = 1;
  seam.compute_share = seam.modified_share = 0.1;
  seam.cpu_s = 0.1;
  seam.exact_cpu_s = 1;
  seam.added_bytes = 1 << 20;
  seam.exact_bytes = 4 << 20;
  ReuseVariant layered = Variant(ReuseMode::kLayered, 7, true);
  layered.refused = "no checkpoint";
  const std::string table = DistanceTable({seam, layered});
  EXPECT_THAT(table, HasSubstr("| seam | 30 | 2 | 1 | 5.0 % | 5.0 % |"));
  EXPECT_THAT(table, HasSubstr("| 10 % | 0.5 | 2.0 | 75 % |"));
  EXPECT_THAT(table, HasSubstr("| layered | 7 | refused: no checkpoint |"));
}

TEST(ModeExperiments, MemoryIsDrawnOfTheUsualModes) {
  ReuseVariant seam = Variant(ReuseMode::kSeam, 30, true);
  seam.memory = {{5, 80}, {10, 60}};
  ReuseVariant far = Variant(ReuseMode::kAnchored, 22, false);
  far.memory = {{30, 0}};
  const LinePlot plot = PlotOfMemory({seam, far, Variant(ReuseMode::kBlend, 30, true)});
  ASSERT_EQ(plot.series.size(), 1u);
  EXPECT_EQ(plot.series[0].name, "seam");
  EXPECT_THAT(plot.series[0].points, ElementsAre(Pair(5, 80), Pair(10, 60)));
}

}  // namespace
}  // namespace kvlink::cli
