// Log-probabilities of one row of logits: log softmax in double, of the raw logits (before
// temperature, penalties and bias).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace kvlink::engine {

// log(sum(exp(logits))). Terms below exp(-40) of the largest are left out (together under 1e-12).
double LogSumExp(std::span<const float> logits);

// The k most likely tokens, descending; of equal ones the lowest id first. O(V log k).
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, double log_sum_exp, int k);

}  // namespace kvlink::engine
