// Attempt: one prompt's try at similar reuse, from the reservation of what it may waste to its
// verdict. Gathers the evidence, lets `verify` judge it, and counts how it ended: once, or not at
// all when the request is cancelled before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvlink/similar.h"
#include "link/cache_state.h"
#include "link/donor_notes.h"
#include "verify/cluster_ledger.h"
#include "verify/row_selection.h"

namespace kvlink::link {

struct AttemptTerms {
  verify::Cluster cluster;
  SimilarPolicy policy = SimilarPolicy::kOn;
  bool is_trial = false;  // nobody sees the answer: no outcome, and all rows are wasted
  uint32_t exact_tokens = 0;
  uint32_t num_tokens = 0;
};

// What a selection of `rows` rows costs, in rows that run all layers.
uint64_t WorkOf(const Selection& selection, uint32_t rows);

class Attempt {
 public:
  // Null: the budget of failed attempts does not permit it. `note`: of the donor, when it has one.
  static std::unique_ptr<Attempt> Start(std::shared_ptr<CacheState> state, SimilarPlan plan,
                                        const AttemptTerms& terms, std::optional<DonorNote> note);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  // `logits` [vocabulary] of the prompt's last row; `deviation` [num_tokens] as in
  // verify::SelectRequest. After kEnlarge selection() is larger, and all of it runs again; after
  // any other verdict the attempt is over.
  Verdict Judge(std::span<const float> logits, std::span<const float> deviation);
  // As of Sequence: rows whose likelihood can be compared with the donor's, and what it was.
  uint32_t observed_rows() const;
  void RecordTail(const PromptTail& tail) { nll_ = tail.nll; }
  // The attempt is over: what was enlarged cannot be run.
  Verdict GiveUp(SimilarReason reason);

  // Chooses the rows again, by what was measured: within `budget_share` of the mode's budget, and
  // those that run already, where `joins` or where the selection was enlarged.
  void Reselect(std::span<const float> deviation, double budget_share, bool joins);

  const SimilarPlan& plan() const { return plan_; }
  const Selection& selection() const { return plan_.selection; }

 private:
  Attempt(std::shared_ptr<CacheState> state, SimilarPlan plan, const AttemptTerms& terms,
          std::optional<DonorNote> note);
  // Both prompts end with the last span: the donor's next token answers the same question.
  bool EndsAsTheDonor() const;
  std::vector<float> Received() const;
  void CompareWithDonor(Evidence* evidence) const;
  bool Reserve();  // what the selection may waste
  verify::SelectRequest RequestOf(std::span<const float> deviation) const;
  Evidence EvidenceOf(std::span<const float> logits, std::span<const float> deviation) const;
  bool Enlarge(std::span<const float> deviation);
  void Accept(Verdict* verdict);

  const std::shared_ptr<CacheState> state_;
  const AttemptTerms terms_;
  SimilarPlan plan_;
  const std::optional<DonorNote> note_;
  std::vector<float> nll_;           // as in PromptTail, of this run
  std::optional<TopLogits> before_;  // the enlargement
  uint64_t reserved_rows_ = 0;       // of the budget: all that ran or may run
  uint64_t rows_run_ = 0;
  uint64_t next_rows_ = 0;  // of the run that is under way
  bool is_over_ = false;
};

}  // namespace kvlink::link
