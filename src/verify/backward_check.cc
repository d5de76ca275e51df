#include "verify/backward_check.h"

#include <algorithm>
#include <cmath>

#include "verify/distribution.h"

namespace kvlink::verify {
namespace {

// What speaks against the result however little has changed around it.
bool IsGarbled(const Evidence& evidence, const SimilarOptions& options) {
  if (!evidence.finite || evidence.first.entries.empty()) return true;
  // Written so that a NaN is garbled, too.
  if (!(evidence.nll_increase <= options.max_nll_increase)) return true;
  if (!std::isfinite(evidence.entropy)) return true;
  return evidence.donor_entropy &&
         !(evidence.entropy <= *evidence.donor_entropy + options.max_entropy_increase);
}

}  // namespace

double ScoreOf(const Evidence& evidence, const SimilarOptions::ScoreWeights& weights) {
  const double sum_of_weights = weights.blast_radius + weights.nll_increase +
                                weights.convergence_js + weights.mask_mismatch + weights.indecision;
  if (sum_of_weights <= 0) return 0;
  const double js = evidence.before ? JensenShannon(*evidence.before, evidence.first) : 0;
  const double sum = weights.bias + weights.blast_radius * evidence.blast_radius.value_or(1) +
                     weights.nll_increase * std::max(evidence.nll_increase, 0.0) +
                     weights.convergence_js * js +
                     weights.mask_mismatch * (1 - evidence.mask_similarity) +
                     weights.indecision * std::exp(-Margin(evidence.first));
  return 1 / (1 + std::exp(-sum));
}

Verdict Judge(const Evidence& evidence, const SimilarOptions& options) {
  using Action = Verdict::Action;
  Verdict verdict;
  const auto decide = [&](Action action, SimilarReason reason) {
    verdict.action = action;
    verdict.reason = reason;
    return verdict;
  };
  if (IsGarbled(evidence, options)) return decide(Action::kFallBack, SimilarReason::kGarbled);
  verdict.score = ScoreOf(evidence, options.score_weights);
  const bool is_known = evidence.blast_radius.has_value();
  const double blast = evidence.blast_radius.value_or(0);
  const bool is_small = is_known && blast <= options.accept_blast_radius;
  if (evidence.donor) {
    const double js = JensenShannon(*evidence.donor, evidence.first);
    if (is_known && !is_small && js < options.stale_js) {
      return decide(Action::kFallBack, SimilarReason::kStale);
    }
    if (is_small && js > options.garbled_js) {
      return decide(Action::kFallBack, SimilarReason::kGarbled);
    }
  }
  if (is_known && !(blast <= options.refuse_blast_radius)) {
    return decide(Action::kFallBack, SimilarReason::kBlastRadius);
  }
  if (evidence.before) {
    const bool converged = SameFirst(*evidence.before, evidence.first) &&
                           JensenShannon(*evidence.before, evidence.first) <= options.converged_js;
    if (!converged) return decide(Action::kFallBack, SimilarReason::kDiverged);
  } else if (!is_small || options.policy == SimilarPolicy::kStrict) {
    return decide(Action::kEnlarge, SimilarReason::kBlastRadius);
  }
  if (verdict.score > options.max_score) return decide(Action::kFallBack, SimilarReason::kScore);
  return decide(Action::kAccept, SimilarReason::kNone);
}

}  // namespace kvlink::verify
