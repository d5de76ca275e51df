// The report of `kvlink calibrate`, as Markdown: per setting and class what was lent, refused and
// wrong; per kind and place of edit how far the answers were; the edits that decide; the reasons.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/calibrate_choose.h"
#include "cli/plot.h"
#include "model/model.h"

namespace kvlink::cli {

// Mean and 95th percentile of the first token's KL, and what else tells how far runs are.
struct DistanceSummary {
  size_t count = 0;
  double mean_first_kl = 0, p95_first_kl = 0, mean_kl = 0, p95_mean_kl = 0, top1 = 0;
  size_t flips = 0;        // of the first token
  double largest_gap = 0;  // of a flip: how much the exact run preferred its own, in nats
};
DistanceSummary Summarise(const std::vector<Distance>& distances);

struct CalibrationFigures {
  std::vector<CalibrationSetting> ladder;
  std::vector<std::vector<PairOutcome>> outcomes;  // [setting][pair]
  Choice choice;
  std::string noise_name;       // what was varied for the noise floor; empty: nothing
  std::vector<Distance> noise;  // of exact runs among themselves
  double tie_gap = 0;
  double prefill_us_per_row = 0;
  double cpu_s = 0;
  uint64_t seed = 0;
  std::string command;             // that makes the report again
  std::string experiments;         // a section of the report; empty: none were made
  std::optional<LinePlot> memory;  // of the experiments: cells modified against KV saved
};

// A picture that lies beside the report.
struct ReportImage {
  std::string file, caption;
};

std::string CalibrationReport(const model::ModelInfo& info, const CalibrationFigures& figures,
                              const std::vector<ReportImage>& images);

// The experiments alone, where nothing was calibrated.
std::string ExperimentReport(const model::ModelInfo& info, const CalibrationFigures& figures,
                             const std::vector<ReportImage>& images);

// The table of classes at the chosen setting, for the terminal.
std::string CalibrationTable(const CalibrationFigures& figures);

}  // namespace kvlink::cli
