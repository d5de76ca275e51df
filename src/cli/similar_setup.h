// What --similar and --calibration mean: the cache's options for similar reuse, from the policy,
// the model, and the file in which `kvlink calibrate` wrote what it measured for that model.
//
//   {"format": "kvlink-calibration", "version": 1, "model_digest": "9f2c...", "model_name": "...",
//    "prefill_us_per_row": 300, "options": {"mode": "seam", "seam_rows": 8, ...},
//    "classes": {"values": {"trials": 80, "failures": 0}, ...}}
//
// Options that it does not name keep their defaults; a class that it does not name stays closed.
#pragma once

#include <string>
#include <vector>

#include "kvlink/options.h"
#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

inline constexpr const char* kSimilarHelp =
    "off; on: rows of similar prompts may stand in, checked before and after; strict: accepted "
    "only when computing more changes nothing";
inline constexpr const char* kCalibrationHelp =
    "What `kvlink calibrate` measured for this model; default: share/kvlink/<digest>.json near "
    "the executable";

inline constexpr const char* kSimilarModeHelp =
    "Which rows run, in place of what the calibration says: seam, layered, blend or anchored. Its "
    "trials were another mode's, so this is to measure, not to serve";
std::vector<std::string> SimilarModeNames();
// Requires: one of these names.
ReuseMode ParseSimilarMode(const std::string& name);
// Seam and blend keep a donor's K and V through all layers, which is measured where they are used;
// the others within the default reuse distance.
void UseSimilarMode(ReuseMode mode, uint32_t num_layers, SimilarOptions* options);

// "off", "on" or "strict".
SimilarPolicy ParseSimilarPolicy(const std::string& name);

// Fills options->similar and options->similar_model. kNotFound: no calibration of this model (says
// where it looked); kInvalidArgument: the file is not one, is of another model or has a wrong
// value, or the model has sliding windows. `any_model`: another model's file will do, to measure
// what its parameters do here; never to serve.
Status SetUpSimilar(SimilarPolicy policy, const std::string& calibration_file,
                    const model::Model& model, CacheOptions* options, bool any_model = false);

// What the model's tokens and attention are, whatever the policy.
SimilarModel DescribeForSimilar(const model::Model& model);

// Text of a calibration file for `options`; the reader's inverse.
std::string CalibrationText(const model::ModelInfo& info, const SimilarOptions& options,
                            const SimilarModel& similar_model);

}  // namespace kvlink::cli
