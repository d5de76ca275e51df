// ExpSums: what a row of logits sums up to as a softmax, in two readings of it.
//
// Terms are exponentials in float, many at a time: exp(x) = 2^n * p(r) with |r| <= ln(2) / 2 and a
// polynomial of degree 6, right to 2e-7 of the term; blocks of terms are added in pairs, sums of
// blocks in double. A log sum is within 1e-6 nats of the one in double, at a fiftieth of its time.
// The bits depend on what the compiler targets, so this is for measurements, not for what a client
// is told.
#pragma once

#include <span>

namespace kvlink::base {

struct ExpSums {
  bool finite = true;  // every value is; otherwise the others are NaN
  double log_sum = 0;  // log(sum(exp(x)))
  double entropy = 0;  // of exp(x - log_sum), in nats
};
// Of no values: zeros. A value further than 87 below the largest counts as one that is 87 below.
ExpSums SumExponentials(std::span<const float> values);

// The largest value; -infinity of none. Requires: no NaN.
float LargestOf(std::span<const float> values);

}  // namespace kvlink::base
