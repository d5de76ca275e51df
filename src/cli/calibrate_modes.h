// Modes of reuse beside each other, on the same pairs: `kvlink calibrate --experiments`.
//
//   reuse distance   every mode with several limits of layers in a row that keep a donor's K and V
//   edits that decide   each mode as it is used: whose fact do its answers hold
//   memory   cells (layer, row) that a mode writes, against the KV that sharing saves
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/calibrate_report.h"
#include "cli/calibrate_run.h"
#include "cli/plot.h"
#include "model/model.h"

namespace kvlink::cli {

// A mode, how many layers in a row may keep the donor's K and V, and what came of it.
struct ReuseVariant {
  ReuseMode mode = ReuseMode::kSeam;
  uint32_t distance = 0;
  bool is_usual = false;  // the distance that the mode is used with
  std::string refused;    // by the cache, in its words
  uint32_t planned = 0, accepted = 0, took_donor_fact = 0;
  double compute_share = 0, modified_share = 0, cpu_s = 0, exact_cpu_s = 0;  // sums over planned
  double added_bytes = 0, exact_bytes = 0;
  std::vector<Distance> distances;
  // Of each pair that was planned: cells modified, and KV saved of what exact reuse adds; per cent.
  std::vector<std::pair<double, double>> memory;
  std::vector<PairOutcome> decisive;  // of the second run, pairs whose exact answer holds the fact
};

// KV bytes that exact reuse adds for such a prompt: whole pages, the one that it ends in included.
uint64_t ExactBytes(const KvShape& shape, const SimilarTrial& trial);

std::string DistanceTable(const std::vector<ReuseVariant>& variants);
std::string DecisiveModesTable(const std::vector<ReuseVariant>& variants);
LinePlot PlotOfMemory(const std::vector<ReuseVariant>& variants);

struct ModeExperiments {
  std::vector<ReuseVariant> variants;
  uint32_t pairs = 0;  // of the first run
};
// `figures`: of the calibration, whose chosen setting all modes take. First
// `options.experiment_pairs` pairs with every variant, then the usual ones until `options.decisive`
// pairs that decide were usable.
Result<ModeExperiments> CompareModes(const model::Model& model, const CalibrationOptions& options,
                                     const CalibrationFigures& figures,
                                     const std::function<void(const std::string&)>& note);

}  // namespace kvlink::cli
