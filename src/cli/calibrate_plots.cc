#include "cli/calibrate_plots.h"

#include <algorithm>
#include <array>
#include <filesystem>

namespace kvlink::cli {
namespace {

constexpr size_t kClasses = static_cast<size_t>(EditClass::kCount);

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Accepted pairs of a class: share of rows that ran in per cent, and mean KL over the forced
// tokens.
PlotSeries PointsOf(const std::vector<PairOutcome>& outcomes, EditClass edit) {
  PlotSeries series{EditClassName(edit), {}, false, static_cast<int>(edit)};
  for (const PairOutcome& outcome : outcomes) {
    if (!outcome.trial.is_accepted() || outcome.trial.edit != edit) continue;
    series.points.emplace_back(100 * outcome.trial.computed_share(),
                               outcome.trial.distance.mean_kl);
  }
  return series;
}

}  // namespace

LinePlot PlotOfDivergence(const CalibrationFigures& figures) {
  LinePlot plot{"Divergence from exact answers against rows computed (each setting's mean joined)",
                "rows computed, % of what exact reuse computes",
                "KL over 16 tokens, mean, nats",
                false,
                true,
                {},
                {}};
  // Every pair at the chosen setting, and the means of all settings, loosest first.
  for (size_t i = 0; i < kClasses; ++i) {
    const auto edit = static_cast<EditClass>(i);
    plot.series.push_back(PointsOf(figures.outcomes[figures.choice.setting], edit));
  }
  for (size_t i = 0; i < kClasses; ++i) {
    const auto edit = static_cast<EditClass>(i);
    PlotSeries means{std::string(EditClassName(edit)) + ", means", {}, true, static_cast<int>(i)};
    for (const auto& outcomes : figures.outcomes) {
      std::vector<double> shares, divergences;
      for (const auto& [share, kl] : PointsOf(outcomes, edit).points) {
        shares.push_back(share);
        divergences.push_back(kl);
      }
      if (!shares.empty()) means.points.emplace_back(Mean(shares), Mean(divergences));
    }
    std::ranges::sort(means.points);
    plot.series.push_back(std::move(means));
  }
  if (!figures.noise.empty()) {
    plot.levels.emplace_back("noise floor (exact)", Summarise(figures.noise).mean_kl);
  }
  return plot;
}

BarPlot PlotOfRefusals(const CalibrationFigures& figures) {
  BarPlot plot{"Pairs that got no rows, or were given up (setting " +
                   figures.ladder[figures.choice.setting].name + ")",
               "% of the pairs",
               {},
               {{"forward check, no donor", {}}, {"backward check", {}}},
               true};
  for (size_t i = 0; i < static_cast<size_t>(PairKind::kCount); ++i) {
    size_t pairs = 0, before = 0, after = 0;
    for (const PairOutcome& outcome : figures.outcomes[figures.choice.setting]) {
      if (static_cast<size_t>(outcome.kind) != i) continue;
      ++pairs;
      before += outcome.trial.was_planned ? 0 : 1;
      after += outcome.trial.was_planned && !outcome.trial.is_accepted() ? 1 : 0;
    }
    if (pairs == 0) continue;
    plot.groups.push_back(PairKindName(static_cast<PairKind>(i)));
    plot.bars[0].second.push_back(100.0 * static_cast<double>(before) / static_cast<double>(pairs));
    plot.bars[1].second.push_back(100.0 * static_cast<double>(after) / static_cast<double>(pairs));
  }
  return plot;
}

BarPlot PlotOfFirstToken(const CalibrationFigures& figures) {
  BarPlot plot{"Processor time to the first token, fallbacks included (mean)",
               "ms",
               {},
               {{"exact reuse", {}}, {"similar reuse", {}}},
               true};
  for (size_t i = 0; i < kClasses; ++i) {
    std::vector<double> exact, similar;
    for (const PairOutcome& outcome : figures.outcomes[figures.choice.setting]) {
      const SimilarTrial& trial = outcome.trial;
      if (!trial.was_planned || static_cast<size_t>(trial.edit) != i) continue;
      exact.push_back(1e3 * outcome.exact_cpu_s);
      similar.push_back(1e3 * (trial.cpu_s + (trial.is_accepted() ? 0 : outcome.exact_cpu_s)));
    }
    if (exact.empty()) continue;
    plot.groups.push_back(EditClassName(static_cast<EditClass>(i)));
    plot.bars[0].second.push_back(Mean(exact));
    plot.bars[1].second.push_back(Mean(similar));
  }
  return plot;
}

Result<std::vector<ReportImage>> WriteCalibrationPlots(const std::string& report,
                                                       const CalibrationFigures& figures) {
  const std::filesystem::path path(report);
  const std::filesystem::path folder = path.parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const std::string stem =
      path.extension() == ".md" ? path.stem().string() : path.filename().string();
  std::vector<ReportImage> images;
  const auto write = [&](const char* ending, const char* caption, const auto& plot) {
    const std::string name = stem + ending;
    images.push_back({name, caption});
    return WritePlot(plot, (folder / name).string());
  };
  std::vector<Status> written;
  if (!figures.outcomes.empty()) {
    written = {write("-kl.png", "KL against the share of rows computed", PlotOfDivergence(figures)),
               write("-refused.png", "Refused pairs by kind of edit", PlotOfRefusals(figures)),
               write("-ttft.png", "Time to the first token by class", PlotOfFirstToken(figures))};
  }
  if (figures.memory) {
    written.push_back(write("-memory.png", "KV saved against cells modified", *figures.memory));
  }
  for (const Status& status : written) {
    if (!status.ok()) return Status(status.code(), "--report: " + status.message());
  }
  return images;
}

}  // namespace kvlink::cli
