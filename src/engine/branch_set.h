// Branches of one request: what they have in common, and which of them are returned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink::engine {

// Tokens that all branches begin with, leaving each at least its last one: after a preemption they
// are computed once, and each branch goes on alone from there. Requires: no branch is empty.
uint32_t SharedTrunk(std::span<const std::span<const TokenId>> branches);

struct BranchScore {
  double sum = 0;       // of the logprobs of the sampled tokens
  uint32_t tokens = 0;  // sampled
};

// The n branches with the highest mean logprob, best first; of equal ones the lower index first.
std::vector<uint32_t> BestBranches(std::span<const BranchScore> branches, uint32_t n);

}  // namespace kvlink::engine
