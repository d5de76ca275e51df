#include "cli/calibrate_plots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace kvlink::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

PairOutcome Outcome(PairKind kind, EditClass edit, uint32_t computed, double kl) {
  PairOutcome outcome;
  outcome.kind = kind;
  outcome.trial.was_planned = true;
  outcome.trial.edit = edit;
  outcome.trial.prompt_rows = 100;
  outcome.trial.computed_rows = computed;
  outcome.trial.distance.mean_kl = kl;
  outcome.trial.cpu_s = 0.01;
  outcome.exact_cpu_s = 0.1;
  return outcome;
}

// Two settings; the first one computes more and is nearer.
CalibrationFigures Figures() {
  CalibrationFigures figures;
  figures.ladder = CalibrationLadder(30);
  figures.ladder.resize(2);
  figures.choice.setting = 1;
  figures.outcomes = {{Outcome(PairKind::kClock, EditClass::kValues, 20, 1e-3)},
                      {Outcome(PairKind::kClock, EditClass::kValues, 10, 4e-3)}};
  PairOutcome refused = Outcome(PairKind::kClock, EditClass::kValues, 10, 0);
  refused.trial.reason = SimilarReason::kDiverged;
  PairOutcome not_lent = Outcome(PairKind::kPassage, EditClass::kWords, 0, 0);
  not_lent.trial.was_planned = false;
  not_lent.trial.reason = SimilarReason::kMaskMismatch;
  for (auto& outcomes : figures.outcomes) {
    outcomes.push_back(refused);
    outcomes.push_back(not_lent);
  }
  Distance noise;
  noise.mean_kl = 2e-3;
  figures.noise = {noise};
  return figures;
}

const PlotSeries& Series(const LinePlot& plot, const std::string& name) {
  for (const PlotSeries& series : plot.series) {
    if (series.name == name) return series;
  }
  ADD_FAILURE() << "no series " << name;
  return plot.series.front();
}

TEST(CalibrationPlots, DivergenceHasThePairsAndTheMeansOfTheSettings) {
  const LinePlot plot = PlotOfDivergence(Figures());
  EXPECT_THAT(Series(plot, "values").points, ElementsAre(Pair(10, 4e-3)));
  EXPECT_THAT(Series(plot, "values, means").points, ElementsAre(Pair(10, 4e-3), Pair(20, 1e-3)));
  EXPECT_TRUE(Series(plot, "words").points.empty());
  EXPECT_THAT(plot.levels, ElementsAre(Pair("noise floor (exact)", 2e-3)));
}

TEST(CalibrationPlots, RefusalsAreSharesOfTheirKind) {
  const BarPlot plot = PlotOfRefusals(Figures());
  EXPECT_THAT(plot.groups, ElementsAre("clock", "passage"));
  EXPECT_THAT(plot.bars[0].second, ElementsAre(0, 100));
  EXPECT_THAT(plot.bars[1].second, ElementsAre(50, 0));
}

TEST(CalibrationPlots, TimeToTheFirstTokenCountsFallbacks) {
  const BarPlot plot = PlotOfFirstToken(Figures());
  EXPECT_THAT(plot.groups, ElementsAre("values"));
  EXPECT_NEAR(plot.bars[0].second[0], 100, 1e-9);
  EXPECT_NEAR(plot.bars[1].second[0], (10 + 110) / 2.0, 1e-9);
}

TEST(CalibrationPlots, LieBesideTheReport) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "calibration-plots";
  const auto images = WriteCalibrationPlots((folder / "model.md").string(), Figures());
  ASSERT_TRUE(images.ok()) << images.status().message();
  ASSERT_EQ(images->size(), 3u);
  EXPECT_EQ((*images)[0].file, "model-kl.png");
  for (const ReportImage& image : *images) {
    EXPECT_GT(std::filesystem::file_size(folder / image.file), 5000u) << image.file;
  }
  std::filesystem::remove_all(folder);
}

TEST(CalibrationPlots, ExperimentsAddAChartAndHaveItAlone) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "experiment-plots";
  CalibrationFigures figures = Figures();
  figures.memory = LinePlot{"t", "x", "y", false, false, {{"seam", {{1, 2}, {3, 4}}}}, {}};
  const auto beside = WriteCalibrationPlots((folder / "model.md").string(), figures);
  ASSERT_TRUE(beside.ok()) << beside.status().message();
  EXPECT_EQ(beside->size(), 4u);
  figures.outcomes.clear();
  const auto alone = WriteCalibrationPlots((folder / "alone.md").string(), figures);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  ASSERT_EQ(alone->size(), 1u);
  EXPECT_EQ((*alone)[0].file, "alone-memory.png");
  EXPECT_GT(std::filesystem::file_size(folder / "alone-memory.png"), 5000u);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvlink::cli
