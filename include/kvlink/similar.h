// Similar reuse: the words in which match, verify, link and an engine speak about rows that are
// taken from a similar prompt, not an equal one.
//
//   new prompt   [ exact prefix ][ edited ][ span 1: rows of the donor ][ edited ][ span 2 ][tail]
//   donor        [ other start  ............ rows, shifted by s1 .............. rows, shift s2   ]
//
// A lookup finds a donor and the spans, the forward check judges them before anything runs, Select
// says which rows are computed all the same, the engine gathers Evidence on the way, and Judge says
// whether the result may leave. What was computed on a donor's rows is approximate: it never serves
// an exact request and never becomes a donor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink {

// Rows [position, position + num_rows) of the new prompt have the tokens of the donor's rows
// [donor_position, ...). Spans are ascending in both and do not overlap.
struct ReuseSpan {
  uint32_t position = 0;
  uint32_t donor_position = 0;
  uint32_t num_rows = 0;
  // By how much the rows moved: their K is rotated for position - shift().
  int32_t shift() const {
    return static_cast<int32_t>(position) - static_cast<int32_t>(donor_position);
  }
  uint32_t end() const { return position + num_rows; }
  uint32_t donor_end() const { return donor_position + num_rows; }
  bool operator==(const ReuseSpan&) const = default;
};

// What a model's attention is made of. Similar reuse needs scores that depend on the difference of
// positions alone, and every earlier row in view.
struct AttentionTraits {
  bool causal = true;
  bool rotary = true;
  // Plain, linear, llama3 and YaRN scaling; not dynamic NTK, whose angles change with the length.
  bool linear_angles = true;
  bool several_axes = false;    // M-RoPE
  uint32_t sliding_window = 0;  // 0: none
  bool recurrent = false;
};

// Why a prompt got no similar rows, or why they were given up. Every request that asked for similar
// reuse ends with one of these (kNone: accepted).
enum class SimilarReason : uint8_t {
  kNone,
  kPolicy,         // off for the server, the tenant or the request
  kUncalibrated,   // no calibration of the model passed
  kAttention,      // the model's attention does not permit it
  kNothingToGain,  // the exact hit leaves too few rows
  kNoDonor,
  kReordered,      // passages of the donor stand in another order
  kFewRows,        // too few rows would be reused
  kMaskMismatch,   // forward check: the rows saw too different contexts
  kTooMuchWork,    // forward check: nearly as many rows as a full prefill
  kClusterClosed,  // requests of this kind failed too often
  kBudget,         // failed attempts have used up their share of compute
  kDonorGone,      // evicted between lookup and begin
  kGarbled,        // backward check: not finite, or far less likely or certain than it should be
  kBlastRadius,    // backward check: what later tokens attend to has changed
  kDiverged,       // backward check: more recomputation changed the answer
  kStale,          // backward check: the donor's answer although its grounds have changed
  kScore,          // backward check: the calibrated score
  kTimeout,        // the check took too long
  kNoRoom,         // the donor's pages and the prompt's own do not fit together
  kCount,
};
const char* SimilarReasonName(SimilarReason reason);

// The most likely tokens of a distribution with the logarithm of the sum over *all* exponentials:
// p(token) = exp(logit - log_sum). The rest of the mass is known, its tokens are not.
struct TopLogits {
  struct Entry {
    TokenId token = 0;
    float logit = 0;
  };
  std::vector<Entry> entries;  // by falling logit
  double log_sum = 0;
};

// Which rows behind the exact prefix run, and from where. A row's re-entry layer d: below d it has
// the donor's K and V; at d it restarts from the donor's residual stream; 0 runs it from its token,
// num_layers takes it over whole.
struct Selection {
  struct Range {
    uint32_t position = 0;
    uint32_t num_rows = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> computed;             // rows of d = 0: ascending, disjoint, never touching
  uint32_t reentry_layer = 0;              // d of all other rows of the spans
  uint32_t full_layers = 0;                // leading layers that run for every row, whatever its d
  std::vector<uint32_t> refreshed_layers;  // layers that run for every row from a checkpoint
  uint32_t num_computed = 0;               // rows of `computed`
  // Of (layer, row) behind the exact prefix: what runs, and what is written over the donor's rows.
  double compute_share = 0;
  double modified_share = 0;
};

// Layers [first_layer, end_layer) that run next, for these rows (Sequence::NextBand). A row that
// did not run in the layers before begins with its token, or with the donor's residual stream.
struct LayerBand {
  uint32_t first_layer = 0, end_layer = 0;
  std::vector<Selection::Range> rows;
  bool writes_next = false;  // K and V of end_layer are written, too
};

// What an engine saw of a prompt's last rows (Sequence::observed_rows) while it ran them: of a
// donor to be, for who borrows from it; of who borrows, to be compared with the donor's.
struct PromptTail {
  // [prompt tokens]: attention that each row got from the observed ones, mean over heads and
  // layers. Empty: not measured.
  std::vector<float> received;
  // Of the prompt's last nll.size() tokens: how unlikely each was after those before it, in nats.
  std::vector<float> nll;
};

// What an engine measured while it ran the selected rows; the input of the backward check.
struct Evidence {
  bool finite = true;          // all logits that were looked at
  double mask_similarity = 1;  // of the forward check
  // verify::BlastRadius; none when nothing was measured, which is no reason for trust.
  std::optional<double> blast_radius;
  TopLogits first;                  // the first token's distribution
  double entropy = 0;               // of it, in nats
  std::optional<TopLogits> before;  // the distribution before the selection was enlarged
  // Beside the donor, a signal and never the reference; only where the last span reaches the end of
  // both prompts, because after another question other tokens follow.
  std::optional<TopLogits> donor;
  std::optional<double> donor_entropy;
  double nll_increase = 0;  // mean over that span's last rows of (NLL now - NLL of the donor), nats
};

// What kind of difference there is between a prompt and its donor: what calibration enables or
// disables, and what the bound on wrong accepts is kept for.
enum class EditClass : uint8_t {
  kValues,   // the same kinds of tokens: other numbers, times, ids
  kWords,    // a few other tokens in a few places
  kPassage,  // longer passages came, went or were replaced
  kMany,     // many places
  kCount,
};
const char* EditClassName(EditClass edit);

// Trials of a class of edits: approximate answers that were compared with exact ones.
struct SimilarTrials {
  uint64_t trials = 0, failures = 0;
};

// What a lookup found in one donor: a value, checked again when the sequence begins.
struct SimilarPlan {
  uint64_t donor = 0;            // the cache's name for it
  std::vector<ReuseSpan> spans;  // rows to borrow, all behind the exact ones
  Selection selection;           // which of them run all the same, and all rows of no span
  EditClass edit = EditClass::kWords;
  double mask_similarity = 0, matrix_similarity = 0;  // forward check
  uint32_t reused_rows = 0;                           // of the spans, that do not run
};

struct Verdict {
  enum class Action : uint8_t { kAccept, kEnlarge, kFallBack };
  Action action = Action::kFallBack;
  SimilarReason reason = SimilarReason::kNone;  // of the action; kNone when accepted
  double score = 0;                             // 0 (certain) to 1
  // Not 0: run the prompt exactly when there is time, and report its outcome under this number.
  uint64_t shadow = 0;
};

inline const char* EditClassName(EditClass edit) {
  switch (edit) {
    case EditClass::kValues:
      return "values";
    case EditClass::kWords:
      return "words";
    case EditClass::kPassage:
      return "passage";
    case EditClass::kMany:
      return "many";
    case EditClass::kCount:
      break;
  }
  return "unknown";
}

inline const char* SimilarReasonName(SimilarReason reason) {
  switch (reason) {
    case SimilarReason::kNone:
      return "none";
    case SimilarReason::kPolicy:
      return "policy";
    case SimilarReason::kUncalibrated:
      return "uncalibrated";
    case SimilarReason::kAttention:
      return "attention";
    case SimilarReason::kNothingToGain:
      return "nothing_to_gain";
    case SimilarReason::kNoDonor:
      return "no_donor";
    case SimilarReason::kReordered:
      return "reordered";
    case SimilarReason::kFewRows:
      return "few_rows";
    case SimilarReason::kMaskMismatch:
      return "mask_mismatch";
    case SimilarReason::kTooMuchWork:
      return "too_much_work";
    case SimilarReason::kClusterClosed:
      return "cluster_closed";
    case SimilarReason::kBudget:
      return "budget";
    case SimilarReason::kDonorGone:
      return "donor_gone";
    case SimilarReason::kGarbled:
      return "garbled";
    case SimilarReason::kBlastRadius:
      return "blast_radius";
    case SimilarReason::kDiverged:
      return "diverged";
    case SimilarReason::kStale:
      return "stale";
    case SimilarReason::kScore:
      return "score";
    case SimilarReason::kTimeout:
      return "timeout";
    case SimilarReason::kNoRoom:
      return "no_room";
    case SimilarReason::kCount:
      break;
  }
  return "unknown";
}

}  // namespace kvlink
