// Distances between next-token distributions of which the most likely tokens are known.
#pragma once

#include <cstdint>
#include <span>

#include "kvlink/similar.h"

namespace kvlink::verify {

struct Distribution {
  TopLogits top;  // with the sum over all tokens; of equal logits the smaller token comes first
  double entropy = 0;  // nats
  bool finite = true;  // every logit is; otherwise the rest is empty
};
// Of `logits` [vocabulary], with its `count` most likely tokens.
Distribution DistributionOf(std::span<const float> logits, uint32_t count);

// Jensen-Shannon divergence, 0 to ln 2 nats. A token that only one of them lists counts as
// impossible in the other, the rest of both as one token: exact when both list the whole
// vocabulary, otherwise off by no more than the unlisted mass.
double JensenShannon(const TopLogits& a, const TopLogits& b);

bool SameFirst(const TopLogits& a, const TopLogits& b);  // false when one is empty
// First minus second logit; infinite when there is no second.
double Margin(const TopLogits& logits);

}  // namespace kvlink::verify
