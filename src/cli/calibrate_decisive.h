// Edits that decide, as calibration counts them: how often the exact answer holds the new fact, and
// what became of those answers on a donor's rows.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cli/calibrate_choose.h"

namespace kvlink::cli {

constexpr uint32_t kLongPrompt = 512;  // tokens from which a prompt counts as long

struct DecisiveCounts {
  size_t pairs = 0;
  size_t usable = 0;     // the exact answer holds the new fact and not the donor's
  size_t not_lent = 0;   // of those: no rows were lent, so the answer was exact
  size_t fell_back = 0;  //   ran on donor's rows, and was given up: exact as well
  size_t accepted = 0, new_fact = 0, donor_fact = 0, neither = 0;
  // Of all pairs, usable or not: accepted with the donor's fact where the exact answer has it not.
  size_t took_donor_fact = 0;
};

// Of the pairs that decide; `want(outcome)` chooses among them.
template <typename Want>
DecisiveCounts CountDecisive(std::span<const PairOutcome> outcomes, Want want);

// Section of the report: a table by kind of edit, start given or not, and length; and the sum.
std::string DecisiveSection(std::span<const PairOutcome> outcomes);
// One line for the terminal; empty when nothing decides.
std::string DecisiveLine(std::span<const PairOutcome> outcomes);

// --- implementation ---

void CountOne(const PairOutcome& outcome, DecisiveCounts* counts);

template <typename Want>
DecisiveCounts CountDecisive(std::span<const PairOutcome> outcomes, Want want) {
  DecisiveCounts counts;
  for (const PairOutcome& outcome : outcomes) {
    if (Decides(outcome.kind) && want(outcome)) CountOne(outcome, &counts);
  }
  return counts;
}

}  // namespace kvlink::cli
