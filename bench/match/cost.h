// What finding costs, in process CPU time: medians over repetitions.
#pragma once

#include <cstdint>
#include <vector>

#include "kvlink/similar_options.h"
#include "match/normal_tokens.h"
#include "quality.h"

namespace kvlink::bench {

// Microseconds per thousand tokens of the queries: each is sketched, looked up among the donors
// before it and aligned with what is found.
struct PromptCost {
  double tokens = 0;  // of a query, on average
  double sketch_us = 0, find_us = 0, align_us = 0, add_us = 0;
  double lookup_us() const { return sketch_us + find_us + align_us; }
};
PromptCost MeasurePrompts(const Case& prompts, const match::NormalTokens& classes,
                          const std::vector<uint8_t>& special, double prefill_us_per_token,
                          const SimilarOptions& options);

// A lookup of a prompt of 1,024 tokens in a store of `num_donors` prompts of 96 to 160 tokens, a
// tenth of which begin with one template; half of the prompts looked up have a donor there.
struct StoreCost {
  uint64_t num_donors = 0;
  double find_us = 0;  // without the sketch, which does not depend on the store
  double add_us = 0, erase_us = 0;
  double bytes_per_donor = 0;
  double found = 0;  // share of the lookups that have a donor and found it
};
StoreCost MeasureStore(uint64_t num_donors, uint64_t seed, const SimilarOptions& options);

}  // namespace kvlink::bench
