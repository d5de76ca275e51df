// Similar lookup: from a prompt that the exact index does not cover to a donor's rows that may
// stand in, through retrieval, alignment and the forward check; or why not. The cheap questions
// come first: a prompt without a donor costs a sketch and a probe per anchor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvlink/cache.h"
#include "link/cache_state.h"
#include "link/donor_notes.h"
#include "verify/cluster_ledger.h"

namespace kvlink::link {

// One prompt's rows as they lie in two others.
struct SimilarMatch {
  SimilarReason reason = SimilarReason::kNone;
  std::optional<SimilarPlan> plan;    // when the reason is kNone
  std::vector<BlockId> donor_blocks;  // of the plan: from the donor's first row on
  std::optional<DonorNote> note;      // of the plan's donor, when its tail was recorded
  std::optional<InFlight> wait;       // with kNoDonor: this one is being computed and will do
};

// `exact_tokens` rows are resident.
SimilarMatch FindSimilar(const CacheState& state, const LookupRequest& request,
                         const match::Root& root, uint32_t exact_tokens)
    KVLINK_REQUIRES_SHARED(state.mutex);

verify::Cluster ClusterOf(const match::Root& root, EditClass edit);

}  // namespace kvlink::link
