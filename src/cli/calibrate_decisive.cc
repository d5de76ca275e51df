#include "cli/calibrate_decisive.h"

#include <cstdio>

namespace kvlink::cli {
namespace {

std::string Cells(const DecisiveCounts& counts) {
  char text[200];
  std::snprintf(text, sizeof text, "%zu | %zu | %zu | %zu | %zu | %zu | %zu | %zu |\n",
                counts.pairs, counts.usable, counts.accepted, counts.new_fact, counts.donor_fact,
                counts.neither, counts.fell_back, counts.not_lent);
  return text;
}

DecisiveCounts CountAll(std::span<const PairOutcome> outcomes) {
  return CountDecisive(outcomes, [](const PairOutcome&) { return true; });
}

}  // namespace

void CountOne(const PairOutcome& outcome, DecisiveCounts* counts) {
  ++counts->pairs;
  if (outcome.trial.is_accepted() && outcome.took_donor_fact()) ++counts->took_donor_fact;
  // What is not lent is not run either: nobody knows whether its exact answer holds the fact.
  if (!outcome.trial.was_planned) {
    ++counts->not_lent;
    return;
  }
  if (!outcome.is_usable()) return;
  ++counts->usable;
  if (!outcome.trial.is_accepted()) {
    ++counts->fell_back;
    return;
  }
  ++counts->accepted;
  if (outcome.took_donor_fact()) {
    ++counts->donor_fact;
  } else if (outcome.has_fact) {
    ++counts->new_fact;
  } else {
    ++counts->neither;
  }
}

std::string DecisiveSection(std::span<const PairOutcome> outcomes) {
  std::string text =
      "| edit | answer's start | prompt | pairs | usable | accepted | new fact | donor's fact | "
      "neither | fell back | not lent |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (size_t i = 0; i < static_cast<size_t>(PairKind::kCount); ++i) {
    const auto kind = static_cast<PairKind>(i);
    for (const bool is_forced : {false, true}) {
      for (const bool is_long : {false, true}) {
        const DecisiveCounts counts = CountDecisive(outcomes, [&](const PairOutcome& outcome) {
          return outcome.kind == kind && outcome.is_forced == is_forced &&
                 (outcome.trial.prompt_rows >= kLongPrompt) == is_long;
        });
        if (counts.pairs == 0) continue;
        text += std::string("| ") + PairKindName(kind) + " | " + (is_forced ? "given" : "its own") +
                " | " + (is_long ? "long" : "short") + " | " + Cells(counts);
      }
    }
  }
  const DecisiveCounts all = CountAll(outcomes);
  text += "| **all** | | | " + Cells(all);
  char line[400];
  std::snprintf(line, sizeof line,
                "\nUsable: the exact answer holds the new fact and not the donor's. **%zu usable "
                "pairs; answers with the donor's fact where the exact one has it not: %zu; fell "
                "back: %zu.** Pairs that got no rows were answered exactly and say nothing. Long: "
                "from %u tokens on.\n",
                all.usable, all.took_donor_fact, all.fell_back, kLongPrompt);
  return text + line;
}

std::string DecisiveLine(std::span<const PairOutcome> outcomes) {
  const DecisiveCounts all = CountAll(outcomes);
  if (all.pairs == 0) return "";
  char line[200];
  std::snprintf(line, sizeof line,
                "decisive: %zu of %zu pairs usable; %zu accepted, %zu fell back; with the donor's "
                "fact: %zu\n",
                all.usable, all.pairs, all.accepted, all.fell_back, all.took_donor_fact);
  return line;
}

}  // namespace kvlink::cli
