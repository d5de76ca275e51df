// Experiments behind two rules of thumb of fingerprint caches, for the report of `kvlink calibrate
// --experiments`:
//   window           should it grow with the prompt, or with the model?    (calibrate_window.h)
//   reuse distance   how many layers in a row may keep a donor's K and V? By mode and distance:
//                    quality, time and memory, of the same pairs
// Modes that the cache does not support yet are named with its own words.
#pragma once

#include <functional>
#include <string>

#include "cli/calibrate_run.h"
#include "model/model.h"

namespace kvlink::cli {

// The report's section. `figures`: of the calibration, whose chosen setting the modes start from.
Result<std::string> RunExperiments(const model::Model& model, const CalibrationOptions& options,
                                   const CalibrationFigures& figures,
                                   const std::function<void(const std::string&)>& note);

}  // namespace kvlink::cli
