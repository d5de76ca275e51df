// Facts from a log of prompts: replayed through tokenizer, chat template and the real cache, one
// after the other, without computing anything.
//
// Pages have the model's rows but only a few bytes each, and the KV memory is scaled down alike, so
// that evictions come where they would. A prompt for which a donor lends rows is stored nowhere, as
// in a server; that its answer would pass the backward check is assumed. Answers that the log does
// not give are taken to be short.
#pragma once

#include <functional>
#include <vector>

#include "cli/doctor_facts.h"
#include "cli/workload.h"
#include "kvlink/options.h"
#include "kvlink/status.h"
#include "model/model.h"

namespace kvlink::cli {

struct ReplayOptions {
  // Of similar reuse: the parameters (SetUpSimilar, or defaults) and whether it is on.
  SimilarOptions similar;
  SimilarModel similar_model;
  bool similar_is_on = false;
  uint64_t kv_bytes = 0;  // of the model's real pages
};

// `progress(share done)`. Errors are the template's.
Result<DoctorFacts> ReplayPrompts(const model::Model& model, const Workload& workload,
                                  const ReplayOptions& options,
                                  const std::function<void(double)>& progress);

}  // namespace kvlink::cli
