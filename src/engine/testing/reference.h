// Reference: what a request must answer, computed from the fake model's pure function: no engine,
// no cache, no batch.
#pragma once

#include <vector>

#include "engine/beam_search.h"
#include "engine/engine.h"
#include "engine/testing/fake_model.h"

namespace kvlink::engine {

struct ReferenceHypothesis {
  std::vector<TokenId> tokens;
  double sum = 0, score = 0;
};

// Beam search written down from its definition (see beam_search.h), keeping everything.
std::vector<ReferenceHypothesis> ReferenceBeam(const FakeModel& model, const BeamParams& params,
                                               const std::vector<TokenId>& prompt);

// The branches of a request that runs to its end.
std::vector<BranchResult> Reference(const FakeModel& model, const EngineOptions& options,
                                    const GenerationRequest& request);

}  // namespace kvlink::engine
