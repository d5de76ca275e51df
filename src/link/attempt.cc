#include "link/attempt.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "verify/backward_check.h"
#include "verify/distribution.h"
#include "verify/row_selection.h"

namespace kvlink::link {
namespace {

constexpr uint32_t kTopTokens = 64;  // of a distribution that are compared one by one

}  // namespace

std::unique_ptr<Attempt> Attempt::Start(std::shared_ptr<CacheState> state, SimilarPlan plan,
                                        const AttemptTerms& terms) {
  std::unique_ptr<Attempt> attempt(new Attempt(std::move(state), std::move(plan), terms));
  return attempt->Reserve() ? std::move(attempt) : nullptr;
}

Attempt::Attempt(std::shared_ptr<CacheState> state, SimilarPlan plan, const AttemptTerms& terms)
    : state_(std::move(state)), terms_(terms), plan_(std::move(plan)) {}

// Cancelled: it failed in nothing, so nothing was wasted.
Attempt::~Attempt() {
  if (!is_over_) state_->gate->Settle(reserved_rows_, 0);
}

bool Attempt::Reserve() {
  const uint32_t rows = plan_.selection.num_computed;
  if (!state_->gate->TryReserve(rows)) return false;
  reserved_rows_ += rows;
  return true;
}

Verdict Attempt::Judge(std::span<const float> logits, std::span<const float> deviation) {
  KVLINK_CHECK(!is_over_) << "an attempt has one verdict";
  SimilarOptions options = state_->options.similar;
  if (terms_.policy == SimilarPolicy::kStrict) options.policy = SimilarPolicy::kStrict;
  rows_run_ += plan_.selection.num_computed;
  Evidence evidence = EvidenceOf(logits, deviation);
  Verdict verdict = verify::Judge(evidence, options);
  switch (verdict.action) {
    case Verdict::Action::kAccept:
      Accept(&verdict);
      break;
    case Verdict::Action::kEnlarge:
      if (!Enlarge(deviation)) return GiveUp(SimilarReason::kBudget);
      before_ = std::move(evidence.first);
      break;
    case Verdict::Action::kFallBack: {
      const double score = verdict.score;
      verdict = GiveUp(verdict.reason);
      verdict.score = score;
      break;
    }
  }
  return verdict;
}

// What a donor's last rows attended to is not recorded yet: every row counts the same.
Evidence Attempt::EvidenceOf(std::span<const float> logits,
                             std::span<const float> deviation) const {
  Evidence evidence;
  evidence.mask_similarity = plan_.mask_similarity;
  evidence.first = verify::TopOf(logits, kTopTokens, &evidence.finite);
  if (evidence.finite) evidence.entropy = verify::Entropy(logits);
  evidence.before = before_;
  const std::vector<float> received(plan_.spans.back().donor_end(), 1.0f);
  evidence.blast_radius = verify::BlastRadius({.spans = plan_.spans,
                                               .exact_tokens = terms_.exact_tokens,
                                               .num_tokens = terms_.num_tokens,
                                               .received = received,
                                               .deviation = deviation},
                                              plan_.selection);
  return evidence;
}

bool Attempt::Enlarge(std::span<const float> deviation) {
  Selection larger = verify::SelectRows({.spans = plan_.spans,
                                         .exact_tokens = terms_.exact_tokens,
                                         .num_tokens = terms_.num_tokens,
                                         .received = {},
                                         .deviation = deviation},
                                        state_->layers, state_->options.similar, &plan_.selection);
  plan_.selection = std::move(larger);
  if (!Reserve()) return false;
  plan_.reused_rows = terms_.num_tokens - terms_.exact_tokens - plan_.selection.num_computed;
  state_->counters->similar_enlarged.Add();
  return true;
}

void Attempt::Accept(Verdict* verdict) {
  is_over_ = true;
  SimilarGate& gate = *state_->gate;
  if (terms_.is_trial) {
    gate.Settle(reserved_rows_, rows_run_);
    verdict->shadow = gate.AddShadow(terms_.cluster);
    return;
  }
  gate.Settle(reserved_rows_, 0);
  gate.CountComputed(rows_run_);
  state_->counters->CountOutcome(SimilarReason::kNone);
  state_->counters->similar_tokens.Add(plan_.reused_rows);
  verdict->shadow = gate.CountAccept(terms_.cluster);
}

Verdict Attempt::GiveUp(SimilarReason reason) {
  is_over_ = true;
  state_->gate->Settle(reserved_rows_, rows_run_);
  if (!terms_.is_trial) state_->counters->CountOutcome(reason);
  return {.action = Verdict::Action::kFallBack, .reason = reason};
}

}  // namespace kvlink::link
