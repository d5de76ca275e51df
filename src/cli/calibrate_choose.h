// Choice: which setting a model gets, and which classes of edits it may be used for.
//
//   setting   strictest -------------> loosest
//   values      ok      ok      ok      failed   }  the loosest setting at which every class
//   words       ok      ok    failed      .      }  that passed the strictest still passes:
//   passage   failed    .       .         .      }  the second one here; passage stays closed
//
// A class passes a setting when the Clopper-Pearson bound on its wrong accepts is at most
// max_false_accepts. Settings are tested in this fixed order and a class leaves at its first
// failure, so the bound holds for what is chosen although several were tried (fixed-sequence test).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/calibrate_trial.h"
#include "kvlink/options.h"

namespace kvlink::cli {

struct CalibrationSetting {
  std::string name;
  SimilarOptions options;
};

// The ladder, strictest first, from the defaults: more rows behind the edits, more of the tail, and
// tighter bounds on what may have changed.
std::vector<CalibrationSetting> CalibrationLadder(uint32_t num_layers,
                                                  ReuseMode mode = ReuseMode::kSeam);

// A failure: the exact run prefers its first token by more than the tie gap, the first distribution
// is further from it than this, or the answer holds the donor's fact and the exact one does not.
//
// Tie gap: what the model's own noise moves. The same prompts run with another type of K and V; the
// difference between the two most likely tokens moves by less than the tie gap in kTieShare of the
// cases. A token that flips within it is one that exact runs do not agree on either.
constexpr double kMostFirstKl = 0.1;
constexpr double kTieShare = 0.95;

// One pair at one setting.
struct PairOutcome {
  PairKind kind = PairKind::kClock;
  EditPlace place = EditPlace::kEarly;
  SimilarTrial trial;
  // Of pairs that decide: whose fact the answers hold.
  bool exact_has_fact = false, has_fact = false, has_donor_fact = false,
       exact_has_donor_fact = false;
  bool is_forced = false;  // the start of the answer was given
  double exact_cpu_s = 0;  // processor time of the prompt without a donor, up to its first token
  // The exact answer shows whose fact it follows.
  bool is_usable() const { return exact_has_fact && !exact_has_donor_fact; }
  bool took_donor_fact() const { return has_donor_fact && !exact_has_donor_fact; }
  bool failed(double tie_gap) const {
    return trial.is_accepted() && (trial.distance.first_gap > tie_gap ||
                                   !(trial.distance.first_kl <= kMostFirstKl) || took_donor_fact());
  }
};

using ClassTrials = std::array<SimilarTrials, static_cast<size_t>(EditClass::kCount)>;

ClassTrials TrialsOf(std::span<const PairOutcome> outcomes, double tie_gap);

bool Passes(const SimilarTrials& trials, const SimilarOptions& options);

struct Choice {
  size_t setting = 0;
  // What to write: of a class that passed, its trials at the chosen setting; of one that did not,
  // those of the setting where it failed.
  ClassTrials trials{};
  std::array<bool, static_cast<size_t>(EditClass::kCount)> passed{};
};
// Requires: trials of one setting at least, `trials[i]` of ladder[i].
Choice Choose(std::span<const ClassTrials> trials, const SimilarOptions& options);

}  // namespace kvlink::cli
