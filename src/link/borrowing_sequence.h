// BorrowingSequence: one branch's context, parts of which are a similar prompt's rows.
//
//   exact blocks   used, the last one perhaps in part; never written
//   donor blocks   used, from the donor's first one to the last that is read
//   own pages      in no index, children of nothing: freed with their last user
//
// In modes that run layers apart (verify::BandsOf) own pages hold all rows behind the exact ones,
// as copies of the donor's until they run (loan.h); the donor's blocks are given back with the
// verdict.
//
// Invariants
//   1. It uses every block that its table names. A used block's parents are used, too.
//   2. Taint: it commits nothing to the index and is no donor, and so are its branches. Only own
//      pages are written.
//   3. A row of the prompt is exact, the donor's, or in an own page (loan.h).
// Threads: the engine's. Cost: Begin and Fork O(blocks + selected runs); Commit O(1).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvlink/cache.h"
#include "link/attempt.h"
#include "link/block_store.h"
#include "link/cache_state.h"
#include "link/loan.h"
#include "match/prefix_index.h"

namespace kvlink::link {

class BorrowingSequence final : public Sequence {
 public:
  BorrowingSequence(std::shared_ptr<CacheState> state, std::string tenant)
      : state_(std::move(state)), tenant_(std::move(tenant)) {}
  ~BorrowingSequence() override;
  BorrowingSequence(const BorrowingSequence&) = delete;
  BorrowingSequence& operator=(const BorrowingSequence&) = delete;

  // Takes the exact rows that `match` found and the donor's rows of attempt->plan(), and makes room
  // for the prompt and one token. All or nothing. `donor_blocks`: from the donor's first one on.
  Status Begin(uint32_t num_tokens, const match::PrefixMatch& match,
               std::span<const BlockId> donor_blocks, std::unique_ptr<Attempt> attempt)
      KVLINK_REQUIRES(state_->mutex);

  uint64_t id() const override { return id_; }
  uint32_t num_ready() const override { return num_ready_; }
  uint32_t capacity() const override { return capacity_; }
  Status Reserve(uint32_t num_tokens) override;
  const SpanTable& table() const override { return table_; }
  void Commit(std::span<const TokenId> tokens) override;
  std::span<const Selection::Range> computed_rows() const override {
    if (is_branch_) return {};
    return loan_.is_copied ? selected_ : loan_.computed;
  }
  bool runs_in_bands() const override { return loan_.is_copied && attempt_ != nullptr; }
  std::optional<LayerBand> NextBand() override;
  bool ReadCheckpoint(uint32_t layer, uint32_t position, std::span<float> out) const override;
  uint32_t observed_rows() const override { return attempt_ ? attempt_->observed_rows() : 0; }
  void RecordTail(const PromptTail& tail, std::span<const float>) override {
    if (attempt_) attempt_->RecordTail(tail);
  }
  Verdict CheckFirstToken(std::span<const float> logits) override;
  // kFailedPrecondition before the verdict: what is shared could still be computed again.
  Result<std::unique_ptr<Sequence>> Fork(uint32_t num_tokens, uint32_t max_new_tokens) override;

 private:
  Status StartBranch(const BorrowingSequence& source, uint32_t num_tokens)
      KVLINK_REQUIRES(state_->mutex);
  Status ReserveLocked(uint32_t num_tokens) KVLINK_REQUIRES(state_->mutex);
  void AddOwnPages(uint32_t count) KVLINK_REQUIRES(state_->mutex);
  // Own pages for positions [0, num_tokens) that are not there yet.
  uint32_t MissingPages(uint32_t num_tokens) const;
  bool Enlarge(const Selection& selection);
  void CopyDonor();
  void GiveDonorBack();
  std::vector<float> MeasureDeviation() const;
  std::vector<float> MeasureLayer(uint32_t layer) const;
  void RebuildTable() KVLINK_REQUIRES(state_->mutex);
  uint32_t block_size() const { return state_->options.shape.tokens_per_block; }
  uint32_t donor_block() const { return static_cast<uint32_t>(exact_.size()); }
  uint32_t own_block() const { return static_cast<uint32_t>(exact_.size() + donor_.size()); }

  const std::shared_ptr<CacheState> state_;
  const std::string tenant_;
  uint64_t id_ = 0;
  bool is_branch_ = false;
  Loan loan_;
  std::vector<verify::Band> bands_;         // of the mode; none: rows run all layers at once
  size_t next_band_ = 0;                    // of bands_
  bool has_copies_ = false;                 // of the donor's rows, where there are bands
  std::vector<float> deviation_;            // likewise, as it was measured last
  std::vector<Selection::Range> selected_;  // likewise, as the attempt says
  std::vector<BlockId> exact_, donor_, own_;
  uint32_t num_ready_ = 0;
  uint32_t capacity_ = 0;
  SpanTable table_;
  std::unique_ptr<Attempt> attempt_;  // until the verdict
  size_t counted_bytes_ = 0;          // of state_->sequence_bytes
  uint64_t counted_pages_ = 0;        // of state_->sequence_pages
};

}  // namespace kvlink::link
