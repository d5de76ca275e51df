#include "verify/forward_check.h"

#include <cmath>

namespace kvlink::verify {
namespace {

// H(high) - H(low) of harmonic numbers: summed where they are small, by the asymptotic series where
// they are not (its error is below 1 / (252 low^6)).
double HarmonicDifference(uint64_t low, uint64_t high) {
  double sum = 0;
  constexpr uint64_t kSeriesFrom = 64;
  while (low < high && low < kSeriesFrom) sum += 1.0 / static_cast<double>(++low);
  if (low == high) return sum;
  const auto series = [](uint64_t n) {
    const auto x = static_cast<double>(n);
    return std::log(x) + 1 / (2 * x) - 1 / (12 * x * x) + 1 / (120 * x * x * x * x);
  };
  return sum + series(high) - series(low);
}

// Sum of s(i) over rows [from, num_rows) of a span before which `matched` tokens are matched.
double SumOfSimilarities(const ReuseSpan& span, uint32_t from, uint64_t matched) {
  const uint64_t c = uint64_t{span.position} + span.donor_position - matched;
  const uint64_t delta = c - matched;
  return (span.num_rows - from) -
         static_cast<double>(delta) * HarmonicDifference(c + from, c + span.num_rows);
}

double Triangle(uint64_t x) { return static_cast<double>(x) * static_cast<double>(x + 1) / 2; }

}  // namespace

SimilarReason CheckAttention(const AttentionTraits& traits, const char** why) {
  const char* reason = nullptr;
  if (traits.recurrent) reason = "recurrent layers have no rows to reuse";
  if (!traits.causal) reason = "attention is not causal: every row depends on later ones";
  if (!traits.rotary) reason = "positions are not rotary: rows cannot be read at a shift";
  if (!traits.linear_angles) reason = "rotary angles change with the length of the context";
  if (traits.several_axes) reason = "positions have several axes (M-RoPE)";
  if (traits.sliding_window > 0) {
    reason = "a sliding window ends at a distance, so a row's context depends on where it stands";
  }
  if (why != nullptr) *why = reason == nullptr ? "" : reason;
  return reason == nullptr ? SimilarReason::kNone : SimilarReason::kAttention;
}

double SpanSimilarity(std::span<const ReuseSpan> spans, size_t index) {
  uint64_t matched = 0;
  for (size_t i = 0; i < index; ++i) matched += spans[i].num_rows;
  return SumOfSimilarities(spans[index], 0, matched) / spans[index].num_rows;
}

double RowSimilarity(std::span<const ReuseSpan> spans) {
  uint64_t matched = 0;
  double sum = 0;
  for (const ReuseSpan& span : spans) {
    sum += SumOfSimilarities(span, 0, matched);
    matched += span.num_rows;
  }
  return matched == 0 ? 0 : sum / static_cast<double>(matched);
}

double MatrixSimilarity(std::span<const ReuseSpan> spans, uint32_t num_tokens,
                        uint32_t donor_tokens) {
  uint64_t matched = 0;
  for (const ReuseSpan& span : spans) matched += span.num_rows;
  if (matched == 0) return 0;
  return Triangle(matched) / (Triangle(num_tokens) + Triangle(donor_tokens) - Triangle(matched));
}

ForwardVerdict CheckForward(const ForwardRequest& request, const SimilarOptions& options) {
  ForwardVerdict verdict;
  verdict.matrix_similarity =
      MatrixSimilarity(request.spans, request.num_tokens, request.donor_tokens);
  uint64_t matched = 0;
  double sum = 0;
  for (const ReuseSpan& span : request.spans) {
    const uint64_t before = matched;
    matched += span.num_rows;
    if (span.end() <= request.exact_tokens) continue;
    const uint32_t from =
        span.position < request.exact_tokens ? request.exact_tokens - span.position : 0;
    const uint32_t rows = span.num_rows - from;
    const double similarities = SumOfSimilarities(span, from, before);
    if (similarities < options.span_similarity * rows) continue;
    verdict.spans.push_back({.position = span.position + from,
                             .donor_position = span.donor_position + from,
                             .num_rows = rows});
    verdict.reused_rows += rows;
    sum += similarities;
  }
  const uint32_t behind = request.num_tokens - request.exact_tokens;
  const uint32_t reused = verdict.reused_rows;
  if (reused > 0) verdict.mask_similarity = sum / reused;
  if (request.num_moved > options.max_moved_share * (reused + double{1} * request.num_moved)) {
    verdict.reason = SimilarReason::kReordered;
  } else if (reused < options.min_reused_rows) {
    verdict.reason = SimilarReason::kFewRows;
  } else if (verdict.mask_similarity < options.mask_similarity) {
    verdict.reason = SimilarReason::kMaskMismatch;
  } else if (behind - reused > options.max_compute_share * behind) {
    verdict.reason = SimilarReason::kTooMuchWork;
  }
  if (verdict.reason != SimilarReason::kNone) verdict.spans.clear();
  return verdict;
}

}  // namespace kvlink::verify
