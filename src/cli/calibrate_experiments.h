// Experiments behind two rules of thumb of fingerprint caches, for the report of `kvlink calibrate
// --experiments`:
//   window           should it grow with the prompt, or with the model?    (calibrate_window.h)
//   reuse distance   how many layers in a row may keep a donor's K and V? By mode and distance:
//                    quality, time and memory, of the same pairs         (calibrate_modes.h)
// and of edits that decide, in which mode answers hold whose fact. Modes that the cache does not
// support are named with its own words.
#pragma once

#include <functional>
#include <string>

#include "cli/calibrate_run.h"
#include "cli/plot.h"
#include "model/model.h"

namespace kvlink::cli {

struct Experiments {
  std::string section;  // of the report
  LinePlot memory;      // cells modified against KV saved
};
// `figures`: of the calibration, whose chosen setting the modes start from. Its prefill cost is
// measured when it is 0.
Result<Experiments> RunExperiments(const model::Model& model, const CalibrationOptions& options,
                                   const CalibrationFigures& figures,
                                   const std::function<void(const std::string&)>& note);

}  // namespace kvlink::cli
