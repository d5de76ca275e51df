// SelectRows: which rows run although the donor has them.
//
//   exact | edited | b rows, then thinner | .. notes .. | edited | b rows .. | tail
//   ready |  E E E | B B B B . B . . B    |   N    N    |  E E   | B B B B   | T T T
//
// E: rows no span covers. B: rows right behind every edit; they saw most of it. T: the prompt's
// last rows, which the answer is read from. N, notes: rows that the donor's last rows attended to
// most; there a model writes down what it concluded, and a conclusion may have changed although
// its own tokens did not. Modes other than kSeam fill a budget by attention and measured deviation.
// The choice of B, N and the score follow measurements in docs/similar.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvlink/similar.h"
#include "kvlink/similar_options.h"
#include "verify/reuse_mode.h"

namespace kvlink::verify {

struct SelectRequest {
  std::span<const ReuseSpan> spans;  // ForwardVerdict::spans
  uint32_t exact_tokens = 0;
  uint32_t num_tokens = 0;
  // [donor tokens]: attention that each row got from the donor's last rows, any scale. Empty: not
  // recorded.
  std::span<const float> received;
  // [num_tokens]: relative change of a row's V against the donor's, where it was measured; NaN
  // elsewhere. Empty: nowhere.
  std::span<const float> deviation;
};

// `before`: a selection to enlarge by options.enlarge_factor; its rows stay selected.
Selection SelectRows(const SelectRequest& request, const LayerPlan& layers,
                     const SimilarOptions& options, const Selection* before = nullptr);

// What of the attention that the answer is read through falls on rows that have changed but were
// not computed: sum of a[i] * d[i] over the spans' rows that are not selected / sum of a[i] over
// all of the spans' rows. Rows without a measurement count with the last one before them in their
// span, which lies nearer to the edit, else with the next. None when nothing in the spans was
// measured or the donor's attention was not recorded.
std::optional<double> BlastRadius(const SelectRequest& request, const Selection& selection);

}  // namespace kvlink::verify
