// Forward check: may a donor's rows be used at all, before anything runs?
//
// A reused row was computed in the donor's context. With both causal attention masks mapped through
// the alignment, row i of the new prompt and row pi(i) of the donor see m(i) equal tokens, and the
// similarity of the two mask rows is their Jaccard index
//     s(i) = m(i) / (i + pi(i) + 2 - m(i)).
// Over a span of l rows before which m tokens are matched and delta = inserted + deleted ones are
// not, with c = a + b - m for a span that starts at a and b, the mean has a closed form (H:
// harmonic numbers):
//     1 - delta / l * (H(c + l) - H(c)).
// Late edits leave it near 1, early ones do not, which is right: the rows before an edit are exact.
// It bounds a difference of structure; whether the words that differ matter it cannot see.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvlink/similar.h"
#include "kvlink/similar_options.h"

namespace kvlink::verify {

// kNone, or why the model's attention permits no similar reuse; `why`, when given, gets it in
// words.
SimilarReason CheckAttention(const AttentionTraits& traits, const char** why = nullptr);

// Mean s(i) over the rows of spans[index]; `spans` is the whole alignment, the common prefix
// included.
double SpanSimilarity(std::span<const ReuseSpan> spans, size_t index);
// Mean s(i) over all rows of the alignment; 0 when there are none.
double RowSimilarity(std::span<const ReuseSpan> spans);
// Jaccard index of the two whole masks, whatever the position: T(M) / (T(n) + T(d) - T(M)) for M
// matched rows, T(x) = x (x + 1) / 2. To publish beside the other; no gate looks at it.
double MatrixSimilarity(std::span<const ReuseSpan> spans, uint32_t num_tokens,
                        uint32_t donor_tokens);

struct ForwardRequest {
  std::span<const ReuseSpan> spans;  // the whole alignment
  uint32_t num_moved = 0;            // rows of the donor's tokens in another order
  uint32_t num_tokens = 0;
  uint32_t donor_tokens = 0;
  uint32_t exact_tokens = 0;  // rows that are there already
};

struct ForwardVerdict {
  SimilarReason reason = SimilarReason::kNone;  // kNone: passed
  std::vector<ReuseSpan> spans;  // to reuse: behind the exact rows, each similar enough
  uint32_t reused_rows = 0;      // in them
  double mask_similarity = 0;    // mean s(i) over the reused rows
  double matrix_similarity = 0;
};

ForwardVerdict CheckForward(const ForwardRequest& request, const SimilarOptions& options);

}  // namespace kvlink::verify
