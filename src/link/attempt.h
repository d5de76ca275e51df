// Attempt: one prompt's try at similar reuse, from the reservation of what it may waste to its
// verdict. Gathers the evidence, lets `verify` judge it, and counts how it ended: once, or not at
// all when the request is cancelled before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kvlink/similar.h"
#include "link/cache_state.h"
#include "verify/cluster_ledger.h"

namespace kvlink::link {

struct AttemptTerms {
  verify::Cluster cluster;
  SimilarPolicy policy = SimilarPolicy::kOn;
  bool is_trial = false;  // nobody sees the answer: no outcome, and all rows are wasted
  uint32_t exact_tokens = 0;
  uint32_t num_tokens = 0;
};

class Attempt {
 public:
  // Null: the budget of failed attempts does not permit it.
  static std::unique_ptr<Attempt> Start(std::shared_ptr<CacheState> state, SimilarPlan plan,
                                        const AttemptTerms& terms);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // `logits` [vocabulary] of the prompt's last row; `deviation` [num_tokens] as in
  // verify::SelectRequest. After kEnlarge selection() is larger, and all of it runs again; after
  // any other verdict the attempt is over.
  Verdict Judge(std::span<const float> logits, std::span<const float> deviation);
  // The attempt is over: what was enlarged cannot be run.
  Verdict GiveUp(SimilarReason reason);

  const SimilarPlan& plan() const { return plan_; }
  const Selection& selection() const { return plan_.selection; }

 private:
  Attempt(std::shared_ptr<CacheState> state, SimilarPlan plan, const AttemptTerms& terms);
  bool Reserve();  // what the selection may waste
  Evidence EvidenceOf(std::span<const float> logits, std::span<const float> deviation) const;
  bool Enlarge(std::span<const float> deviation);
  void Accept(Verdict* verdict);

  const std::shared_ptr<CacheState> state_;
  const AttemptTerms terms_;
  SimilarPlan plan_;
  std::optional<TopLogits> before_;  // the enlargement
  uint64_t reserved_rows_ = 0;       // of the budget: all that ran or may run
  uint64_t rows_run_ = 0;
  bool is_over_ = false;
};

}  // namespace kvlink::link
