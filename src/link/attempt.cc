#include "link/attempt.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "verify/backward_check.h"
#include "verify/distribution.h"
#include "verify/row_selection.h"

namespace kvlink::link {
namespace {

constexpr double kRounding = 1e-6;  // a share of whole rows gives them back

}  // namespace

uint64_t WorkOf(const Selection& selection, uint32_t rows) {
  return static_cast<uint64_t>(std::ceil(selection.compute_share * rows - kRounding));
}

std::unique_ptr<Attempt> Attempt::Start(std::shared_ptr<CacheState> state, SimilarPlan plan,
                                        const AttemptTerms& terms, std::optional<DonorNote> note) {
  std::unique_ptr<Attempt> attempt(
      new Attempt(std::move(state), std::move(plan), terms, std::move(note)));
  return attempt->Reserve() ? std::move(attempt) : nullptr;
}

Attempt::Attempt(std::shared_ptr<CacheState> state, SimilarPlan plan, const AttemptTerms& terms,
                 std::optional<DonorNote> note)
    : state_(std::move(state)), terms_(terms), plan_(std::move(plan)), note_(std::move(note)) {}

// Cancelled: it failed in nothing, so nothing was wasted.
Attempt::~Attempt() {
  if (!is_over_) state_->gate->Settle(reserved_rows_, 0);
}

bool Attempt::Reserve() {
  const uint64_t rows = WorkOf(plan_.selection, terms_.num_tokens - terms_.exact_tokens);
  if (!state_->gate->TryReserve(rows)) return false;
  reserved_rows_ += rows;
  next_rows_ = rows;
  return true;
}

Verdict Attempt::Judge(std::span<const float> logits, std::span<const float> deviation) {
  KVLINK_CHECK(!is_over_) << "an attempt has one verdict";
  SimilarOptions options = state_->options.similar;
  if (terms_.policy == SimilarPolicy::kStrict) options.policy = SimilarPolicy::kStrict;
  rows_run_ += next_rows_;
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

bool Attempt::EndsAsTheDonor() const {
  const ReuseSpan& last = plan_.spans.back();
  return note_ && last.end() == terms_.num_tokens && last.donor_end() == note_->num_tokens;
}

uint32_t Attempt::observed_rows() const {
  if (!EndsAsTheDonor() || note_->tail.nll.empty()) return 0;
  const SimilarOptions& options = state_->options.similar;  // all rows of the tail run
  return std::min({options.observed_rows, options.tail_rows, plan_.spans.back().num_rows});
}

// Where nothing was recorded every row counts the same.
std::vector<float> Attempt::Received() const {
  if (note_ && !note_->tail.received.empty()) return note_->tail.received;
  return std::vector<float>(plan_.spans.back().donor_end(), 1.0f);
}

Evidence Attempt::EvidenceOf(std::span<const float> logits,
                             std::span<const float> deviation) const {
  Evidence evidence;
  evidence.mask_similarity = plan_.mask_similarity;
  verify::Distribution first = verify::DistributionOf(logits, kTopTokens);
  evidence.finite = first.finite;
  evidence.first = std::move(first.top);
  evidence.entropy = first.entropy;
  evidence.before = before_;
  const std::vector<float> received = Received();
  verify::SelectRequest rows = RequestOf(deviation);
  rows.received = received;
  evidence.blast_radius = verify::BlastRadius(rows, plan_.selection);
  if (EndsAsTheDonor()) CompareWithDonor(&evidence);
  return evidence;
}

void Attempt::CompareWithDonor(Evidence* evidence) const {
  if (!note_->first.entries.empty()) {
    evidence->donor = note_->first;
    evidence->donor_entropy = note_->entropy;
  }
  const std::vector<float>& donor = note_->tail.nll;
  const size_t count = std::min(nll_.size(), donor.size());
  if (count == 0) return;
  double sum = 0;
  for (size_t i = 1; i <= count; ++i) {
    sum += double{nll_[nll_.size() - i]} - donor[donor.size() - i];
  }
  evidence->nll_increase = sum / static_cast<double>(count);
}

verify::SelectRequest Attempt::RequestOf(std::span<const float> deviation) const {
  return {
      .spans = plan_.spans,
      .exact_tokens = terms_.exact_tokens,
      .num_tokens = terms_.num_tokens,
      .received = note_ ? std::span<const float>(note_->tail.received) : std::span<const float>(),
      .deviation = deviation};
}

void Attempt::Reselect(std::span<const float> deviation, double budget_share, bool joins) {
  SimilarOptions options = state_->options.similar;
  options.compute_share = std::min(options.compute_share * budget_share, 1.0);
  options.enlarge_factor = 1;
  const Selection before = plan_.selection;
  const bool keeps = joins || before_.has_value();
  plan_.selection =
      verify::SelectRows(RequestOf(deviation), state_->layers, options, keeps ? &before : nullptr);
  plan_.reused_rows = terms_.num_tokens - terms_.exact_tokens - plan_.selection.num_computed;
}

bool Attempt::Enlarge(std::span<const float> deviation) {
  Selection larger = verify::SelectRows(RequestOf(deviation), state_->layers,
                                        state_->options.similar, &plan_.selection);
  plan_.selection = std::move(larger);
  if (!Reserve()) return false;
  plan_.reused_rows = terms_.num_tokens - terms_.exact_tokens - plan_.selection.num_computed;
  state_->counters->similar_enlarged.Add();
  nll_.clear();
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
