// The measuring part of `kvlink calibrate`: pairs from the corpus, each run exactly once and tried
// at every setting of the ladder.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "cli/calibrate_report.h"
#include "cli/workload.h"
#include "model/model.h"

namespace kvlink::cli {

struct CalibrationOptions {
  int threads = 1;
  uint32_t chunk = 512;
  uint64_t seed = 1;
  // Pairs of a class are tried until the strictest setting has accepted so many of them.
  uint32_t accepts = 80;
  ReuseMode mode = ReuseMode::kSeam;  // of all settings
  std::array<bool, static_cast<size_t>(EditClass::kCount)> classes = {true, true, true, true};
  // Pairs with an edit that decides, in which the exact answer, whose start is given, holds the new
  // fact: tried after all others until there are so many.
  uint32_t decisive = 100;
  uint32_t experiment_pairs = 24;          // of the comparison of modes and distances
  uint32_t noise_pairs = 60;               // exact runs for the noise floor; 0: none
  uint32_t context = 2048;                 // longer prompts are left out
  Workload own;                            // the user's prompts; tried first
  const model::Model* other_kv = nullptr;  // the same weights with another type of K and V
};

// `progress(share done, note)`. Fills all of `figures` but cpu_s, command and noise_name.
Status MeasureCalibration(const model::Model& model, const CalibrationOptions& options,
                          const std::function<void(double, const std::string&)>& progress,
                          CalibrationFigures* figures);

}  // namespace kvlink::cli
