// Distances between next-token distributions of which the most likely tokens are known.
#pragma once

#include <cstdint>
#include <span>

#include "kvlink/similar.h"

namespace kvlink::verify {

// The `count` most likely tokens of `logits` [vocabulary], with the sum over all of them. Of equal
// logits the smaller token comes first. `finite`: whether every logit is.
TopLogits TopOf(std::span<const float> logits, uint32_t count, bool* finite);

// Nats. 0 for an empty distribution.
double Entropy(std::span<const float> logits);

// Jensen-Shannon divergence, 0 to ln 2 nats. A token that only one of them lists counts as
// impossible in the other, the rest of both as one token: exact when both list the whole
// vocabulary, otherwise off by no more than the unlisted mass.
double JensenShannon(const TopLogits& a, const TopLogits& b);

bool SameFirst(const TopLogits& a, const TopLogits& b);  // false when one is empty
// First minus second logit; infinite when there is no second.
double Margin(const TopLogits& logits);

}  // namespace kvlink::verify
