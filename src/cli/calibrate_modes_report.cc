// Tables and the chart of the comparison of modes.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "cli/calibrate_decisive.h"
#include "cli/calibrate_modes.h"
#include "verify/reuse_mode.h"

namespace kvlink::cli {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::string DistanceRow(const ReuseVariant& variant) {
  const std::string start = std::string("| ") + verify::ReuseModeName(variant.mode) + " | " +
                            std::to_string(variant.distance) + " | ";
  if (!variant.refused.empty()) {
    return start + "refused: " + variant.refused + " | | | | | | | | | | | | |\n";
  }
  if (variant.planned == 0) return start + "0 | | | | | | | | | | | | |\n";
  const DistanceSummary summary = Summarise(variant.distances);
  const double n = variant.planned;
  char text[300];
  std::snprintf(
      text, sizeof text,
      "%u | %u | %.1f %% | %.1f %% | %.1e | %.1e | %.1e | %.1f %% | %u | %.0f %% | %.1f | "
      "%.1f | %.0f %% |\n",
      variant.planned, variant.accepted, 100 * variant.compute_share / n,
      100 * variant.modified_share / n, summary.mean_first_kl, summary.mean_kl, summary.p95_mean_kl,
      100 * summary.top1, variant.took_donor_fact, 100 * variant.cpu_s / variant.exact_cpu_s,
      variant.added_bytes / n / kMiB, variant.exact_bytes / n / kMiB,
      100 * (1 - variant.added_bytes / variant.exact_bytes));
  return start + text;
}

std::string DecisiveRow(const ReuseVariant& variant) {
  std::vector<Distance> distances;
  std::map<std::string, size_t> reasons;  // of those that fell back
  size_t kept_new = 0, kept_donor = 0;    // what these would have said
  for (const PairOutcome& outcome : variant.decisive) {
    if (outcome.trial.is_accepted()) {
      distances.push_back(outcome.trial.distance);
    } else if (outcome.trial.was_planned) {
      ++reasons[SimilarReasonName(outcome.trial.reason)];
      kept_new += outcome.has_fact ? 1 : 0;
      kept_donor += outcome.took_donor_fact() ? 1 : 0;
    }
  }
  std::string list;
  for (const auto& [reason, count] : reasons) {
    list += (list.empty() ? "" : ", ") + reason + " " + std::to_string(count);
  }
  const DecisiveCounts counts =
      CountDecisive(variant.decisive, [](const PairOutcome&) { return true; });
  const DistanceSummary summary = Summarise(distances);
  char start[200], end[200];
  std::snprintf(start, sizeof start, "| %s | %zu | %zu | %zu | %zu | %zu | %zu | ",
                verify::ReuseModeName(variant.mode), counts.pairs, counts.accepted, counts.new_fact,
                counts.took_donor_fact, counts.neither, counts.fell_back);
  std::snprintf(end, sizeof end, " | %zu | %zu | %zu | %.1e | %.1e |\n", kept_new, kept_donor,
                counts.not_lent, summary.mean_first_kl, summary.mean_kl);
  return start + (list.empty() ? std::string("-") : list) + end;
}

}  // namespace

std::string DistanceTable(const std::vector<ReuseVariant>& variants) {
  std::string text =
      "| mode | distance | lent | accepted | cells computed | cells modified | KL first, mean | KL "
      "of 16, mean | p95 | top-1 | donor's fact | time, of exact | KV added, MiB | by exact reuse, "
      "MiB | KV saved |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const ReuseVariant& variant : variants) text += DistanceRow(variant);
  return text;
}

std::string DecisiveModesTable(const std::vector<ReuseVariant>& variants) {
  std::string text =
      "| mode | usable pairs | accepted | new fact | donor's fact | neither | fell back | for | of "
      "these with the new fact | with the donor's | not lent | KL first, mean | KL of 16, mean |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const ReuseVariant& variant : variants) {
    if (!variant.decisive.empty()) text += DecisiveRow(variant);
  }
  return text;
}

LinePlot PlotOfMemory(const std::vector<ReuseVariant>& variants) {
  LinePlot plot{"KV that sharing saves against cells (layer, row) that are written",
                "cells modified, % of those behind the exact rows",
                "KV saved, % of what exact reuse adds",
                false,
                false,
                {},
                {{"nothing saved", 0.0}}};
  for (const ReuseVariant& variant : variants) {
    if (!variant.is_usual || variant.memory.empty()) continue;
    plot.series.push_back({verify::ReuseModeName(variant.mode), variant.memory, false,
                           static_cast<int>(variant.mode)});
  }
  return plot;
}

}  // namespace kvlink::cli
