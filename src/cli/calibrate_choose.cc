#include "cli/calibrate_choose.h"

#include <algorithm>

#include "base/check.h"
#include "cli/similar_setup.h"
#include "verify/error_bound.h"

namespace kvlink::cli {
namespace {

constexpr size_t kClasses = static_cast<size_t>(EditClass::kCount);

}  // namespace

std::vector<CalibrationSetting> CalibrationLadder(uint32_t num_layers, ReuseMode mode) {
  const auto setting = [&](const char* name, uint32_t seam_rows, uint32_t tail_rows, double accept,
                           double refuse) {
    SimilarOptions options;
    options.policy = SimilarPolicy::kOn;
    UseSimilarMode(mode, num_layers, &options);
    options.seam_rows = seam_rows;
    options.shifted_seam_rows = 2 * seam_rows;
    options.tail_rows = tail_rows;
    options.accept_blast_radius = accept;
    options.refuse_blast_radius = refuse;
    return CalibrationSetting{name, options};
  };
  return {setting("wide", 16, 32, 0.05, 0.25), setting("default", 8, 32, 0.05, 0.50),
          setting("thin", 4, 16, 0.10, 0.50)};
}

ClassTrials TrialsOf(std::span<const PairOutcome> outcomes, double tie_gap) {
  ClassTrials trials{};
  for (const PairOutcome& outcome : outcomes) {
    if (!outcome.trial.is_accepted()) continue;
    SimilarTrials& of_class = trials[static_cast<size_t>(outcome.trial.edit)];
    ++of_class.trials;
    of_class.failures += outcome.failed(tie_gap) ? 1 : 0;
  }
  return trials;
}

bool Passes(const SimilarTrials& trials, const SimilarOptions& options) {
  return verify::UpperErrorBound(trials.failures, trials.trials, options.confidence) <=
         options.max_false_accepts;
}

Choice Choose(std::span<const ClassTrials> trials, const SimilarOptions& options) {
  KVLINK_CHECK(!trials.empty()) << "no setting was measured";
  Choice choice;
  for (size_t edit = 0; edit < kClasses; ++edit) {
    choice.passed[edit] = Passes(trials[0][edit], options);
    choice.trials[edit] = trials[0][edit];
  }
  const auto closed = std::ranges::none_of(choice.passed, [](bool passed) { return passed; });
  for (size_t setting = 1; setting < trials.size() && !closed; ++setting) {
    for (size_t edit = 0; edit < kClasses; ++edit) {
      if (choice.passed[edit] && !Passes(trials[setting][edit], options)) return choice;
    }
    choice.setting = setting;
    for (size_t edit = 0; edit < kClasses; ++edit) {
      if (choice.passed[edit]) choice.trials[edit] = trials[setting][edit];
    }
  }
  return choice;
}

}  // namespace kvlink::cli
