#include "link/similar_lookup.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "link/attempt.h"
#include "link/lookup.h"
#include "match/alignment.h"
#include "match/value_edits.h"
#include "verify/edit_class.h"
#include "verify/forward_check.h"
#include "verify/row_selection.h"

namespace kvlink::link {
namespace {

// Whatever can be said without looking at the tokens.
SimilarReason Excluded(const CacheState& state, const LookupRequest& request, uint32_t exact_tokens)
    KVLINK_REQUIRES_SHARED(state.mutex) {
  if (state.donors == nullptr || request.similar == SimilarPolicy::kOff) {
    return SimilarReason::kPolicy;
  }
  // Rows that must run although they are there are asked for to see exact logits.
  const bool is_shared = request.reuse && state.options.sharing != Sharing::kOff;
  if (!is_shared || request.min_compute > 1) return SimilarReason::kPolicy;
  if (!request.trial && !state.gate->is_calibrated()) return SimilarReason::kUncalibrated;
  const uint64_t needed = uint64_t{exact_tokens} + state.options.similar.min_reused_rows;
  if (request.tokens.size() < needed) return SimilarReason::kNothingToGain;
  return state.donors->IsEmpty() ? SimilarReason::kNoDonor : SimilarReason::kNone;
}

// Whether the forward check lets the donor's tokens stand in, and with which rows. The search for
// an alignment is bounded by what `found` says there is to gain. `received`: by the donor's rows,
// as in verify::SelectRequest.
SimilarMatch Try(const CacheState& state, const LookupRequest& request, const match::Root& root,
                 uint32_t exact_tokens, const match::DonorMatch& found,
                 std::span<const TokenId> donor, std::span<const float> received)
    KVLINK_REQUIRES_SHARED(state.mutex) {
  const SimilarOptions& options = state.options.similar;
  const SimilarModel& model = state.options.similar_model;
  const auto size = static_cast<uint32_t>(request.tokens.size());
  const auto donor_size = static_cast<uint32_t>(donor.size());
  SimilarMatch match;
  const uint32_t gain = std::min(size - exact_tokens, found.estimated_rows);
  const match::Alignment alignment =
      match::Align(request.tokens, donor,
                   {.min_run = options.min_run,
                    .max_edits = match::MaxEdits(size, gain, model.prefill_us_per_row, options),
                    .special = model.special_tokens});
  verify::ForwardVerdict verdict = verify::CheckForward({.spans = alignment.spans,
                                                         .num_moved = alignment.num_moved,
                                                         .num_tokens = size,
                                                         .donor_tokens = donor_size,
                                                         .exact_tokens = exact_tokens},
                                                        options);
  match.reason = verdict.reason;
  if (match.reason != SimilarReason::kNone) return match;

  SimilarPlan plan;
  plan.edit = verify::ClassOfEdits(
      alignment.spans, OnlyValues(request.tokens, donor, alignment.spans, state.donors->classes()));
  if (!request.trial && !state.gate->IsOpen(ClusterOf(root, plan.edit), state.options.clock())) {
    match.reason = SimilarReason::kClusterClosed;
    return match;
  }
  plan.selection = verify::SelectRows({.spans = verdict.spans,
                                       .exact_tokens = exact_tokens,
                                       .num_tokens = size,
                                       .received = received,
                                       .deviation = {}},
                                      state.layers, options);
  // The forward check knew the edits; now the rows around them are known, too. What other rows run
  // of their layers is the mode's.
  if (plan.selection.num_computed > options.max_compute_share * (size - exact_tokens)) {
    match.reason = SimilarReason::kTooMuchWork;
    return match;
  }
  if (!state.gate->MayWaste(WorkOf(plan.selection, size - exact_tokens))) {
    match.reason = SimilarReason::kBudget;
    return match;
  }
  plan.spans = std::move(verdict.spans);
  plan.mask_similarity = verdict.mask_similarity;
  plan.matrix_similarity = verdict.matrix_similarity;
  plan.reused_rows = size - exact_tokens - plan.selection.num_computed;
  match.plan = std::move(plan);
  return match;
}

}  // namespace

verify::Cluster ClusterOf(const match::Root& root, EditClass edit) {
  return {.application = base::Hash64(root.extras), .edit = edit};
}

SimilarMatch FindSimilar(const CacheState& state, const LookupRequest& request,
                         const match::Root& root, uint32_t exact_tokens) {
  SimilarMatch match;
  match.reason = Excluded(state, request, exact_tokens);
  if (match.reason != SimilarReason::kNone) return match;
  const Donors& donors = *state.donors;
  const match::Sketch sketch = donors.SketchOf(request.tokens);
  match.reason = SimilarReason::kNoDonor;
  if (const auto found = donors.FindResident(root, sketch, exact_tokens)) {
    const auto last = static_cast<BlockId>(found->donor);
    DonorChain chain = ReadDonor(state.store->index(), last, found->donor_tokens);
    std::optional<DonorNote> note = state.store->NoteOf(last);
    if (note && note->num_tokens != found->donor_tokens) note.reset();
    const auto received =
        note ? std::span<const float>(note->tail.received) : std::span<const float>();
    match = Try(state, request, root, exact_tokens, *found, chain.tokens, received);
    if (match.plan) {
      match.note = std::move(note);
      match.plan->donor = found->donor;
      match.donor_blocks = std::move(chain.blocks);
      return match;
    }
  }
  if (const auto found = donors.FindPending(root, sketch, exact_tokens)) {
    const SimilarMatch pending =
        Try(state, request, root, exact_tokens, *found, donors.TokensOfPending(found->donor), {});
    if (pending.plan) {
      const base::BlockKey key = Donors::KeyOf(found->donor);
      match.wait = InFlight{.leader = found->donor, .key_lo = key.lo, .key_hi = key.hi};
      match.reason = SimilarReason::kNoDonor;
    }
  }
  return match;
}

}  // namespace kvlink::link
