// Backward check: may the first token leave, or must more rows be computed, or all?
//
//   not finite, garbled ......... fall back          blast <= accept ......... accept
//   looks like the donor, yet                        between ................. enlarge, then accept
//     its grounds changed ....... fall back                                    if nothing moved
//   blast > refuse .............. fall back          strict .................. always enlarge once
//
// The donor's distribution is no reference: an answer that still follows the donor's facts looks
// exactly like it. The reference is the same prompt with more rows computed.
#pragma once

#include "kvlink/similar.h"
#include "kvlink/similar_options.h"

namespace kvlink::verify {

Verdict Judge(const Evidence& evidence, const SimilarOptions& options);

// 0 (certain) to 1; 0 when all weights are.
double ScoreOf(const Evidence& evidence, const SimilarOptions::ScoreWeights& weights);

}  // namespace kvlink::verify
