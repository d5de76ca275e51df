// The upper bound on a failure rate that `failures` of `trials` leave: Clopper and Pearson (1934),
// one-sided and exact. 60 trials without a failure bound it by 5 % at 95 % confidence, 300 by 1 %.
// It holds when the next request is like those tried.
#pragma once

#include <cstdint>

namespace kvlink::verify {

// Requires: failures <= trials, 0 < confidence < 1. 1 when there were no trials.
double UpperErrorBound(uint64_t failures, uint64_t trials, double confidence);

}  // namespace kvlink::verify
