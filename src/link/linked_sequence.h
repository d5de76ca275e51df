// LinkedSequence: one branch's context, as a chain of blocks that it uses.
//
//   chain    [ block 0 ][ block 1 ][ block 2    ][ block 3  ]
//   rows       shared     shared    own: r r . .   reserved
//            |---------- num_ready ------->|--- capacity --->|
//
// Invariants
//   1. It uses every block of its chain; a block's parent is the one before it.
//   2. Only the last block that holds valid rows and those after it are written, and only by the
//      sequence that is their appender. Rows below num_ready are never written.
//   3. If it stores, every committed row is in the index: full blocks and the tail.
// Threads: the engine's. Cost: Commit is O(blocks it completes); Begin, Fork and release O(blocks).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/copy_on_write.h"
#include "kvlink/cache.h"
#include "link/cache_state.h"

namespace kvlink::link {

class LinkedSequence final : public Sequence {
 public:
  // `may_leave_ram`: what it stores may be written to tiers.
  LinkedSequence(std::shared_ptr<CacheState> state, match::Root root, bool store,
                 bool may_leave_ram = true);
  ~LinkedSequence() override;
  LinkedSequence(const LinkedSequence&) = delete;
  LinkedSequence& operator=(const LinkedSequence&) = delete;

  // Takes what `match` found and makes room for the prompt and one token; announces what it will
  // compute. All or nothing. FinishCopies follows, without the lock.
  Status Begin(const LookupRequest& request, const match::PrefixMatch& match)
      KVLINK_REQUIRES(state_->mutex);
  void FinishCopies();

  // As the place of a load: takes the full blocks of `match` and pages for the blocks of `tokens`
  // behind them, and announces those. All or nothing. Requires: `tokens` are whole blocks.
  Status BeginLoad(std::span<const TokenId> tokens, const match::PrefixMatch& match)
      KVLINK_REQUIRES(state_->mutex);
  // As Commit, of rows that came from a tier: nobody computed them.
  void CommitLoaded(std::span<const TokenId> tokens);
  // Nothing more comes: gives back the pages without rows, and nobody waits for them any more.
  void EndLoad() KVLINK_REQUIRES(state_->mutex);

  // From here on others may wait for this prompt to lend its rows; the last one's commit makes it a
  // donor. Nothing happens unless the sequence stores, and has rows of the prompt to compute.
  void BecomeDonor(std::span<const TokenId> prompt) KVLINK_REQUIRES(state_->mutex);

  uint64_t id() const override { return id_; }
  uint32_t num_ready() const override { return num_ready_; }
  uint32_t capacity() const override { return capacity_; }
  Status Reserve(uint32_t num_tokens) override;
  const SpanTable& table() const override { return table_; }
  void Commit(std::span<const TokenId> tokens) override;
  std::span<const uint32_t> checkpoint_layers() const override {
    return state_->layers.checkpoints;
  }
  uint32_t observed_rows() const override {
    return donor_rows_ > 0 ? state_->options.similar.observed_rows : 0;
  }
  void RecordTail(const PromptTail& tail, std::span<const float> logits) override;
  std::span<const Selection::Range> computed_rows() const override { return {}; }
  Verdict CheckFirstToken(std::span<const float> logits) override;
  Result<std::unique_ptr<Sequence>> Fork(uint32_t num_tokens, uint32_t max_new_tokens) override;

 private:
  // Shares the first `num_full` blocks of `chain` and, of the block after them, `tail_rows` rows.
  struct Prefix {
    std::span<const BlockId> full;
    BlockId tail = kNoBlock;
    uint32_t tail_rows = 0;
    uint32_t end_row = 0;  // rows of the tail's block up to here will be written
    bool may_take_over = false;
    bool is_request = false;  // counts as a use of the blocks; a branch of a request does not
  };
  Status StartFrom(const Prefix& prefix, uint32_t room_for) KVLINK_REQUIRES(state_->mutex);
  Status StartBranch(const LinkedSequence& source, uint32_t num_tokens, uint32_t max_new_tokens)
      KVLINK_REQUIRES(state_->mutex);
  Status CopyAllFrom(const LinkedSequence& source, uint32_t num_tokens)
      KVLINK_REQUIRES(state_->mutex);
  void Announce(std::span<const TokenId> tokens) KVLINK_REQUIRES(state_->mutex);
  Status ReserveLocked(uint32_t num_tokens) KVLINK_REQUIRES(state_->mutex);
  void AppendPages(uint32_t count) KVLINK_REQUIRES(state_->mutex);
  void ReplaceTailByFullCopy() KVLINK_REQUIRES(state_->mutex);
  void CommitRows(std::span<const TokenId> tokens) KVLINK_REQUIRES(state_->mutex);
  void CommitToBlock(std::span<const TokenId> tokens) KVLINK_REQUIRES(state_->mutex);
  void WriteBehind(std::vector<PendingWrite> writes);
  void GoOverTo(size_t index, BlockId standing) KVLINK_REQUIRES(state_->mutex);
  void RebuildTable() KVLINK_REQUIRES(state_->mutex);
  base::TimePoint Now() const { return state_->options.clock(); }
  uint32_t block_size() const { return state_->options.shape.tokens_per_block; }

  const std::shared_ptr<CacheState> state_;
  const match::Root root_;
  const bool store_, may_leave_ram_;
  uint64_t id_ = 0;
  std::vector<BlockId> chain_;
  std::vector<TokenId> tail_tokens_;  // of the valid rows of a block that is not full, if it stores
  uint32_t donor_rows_ = 0;           // of the prompt, until it is a donor; 0: it is none to be
  uint32_t lent_rows_ = 0;            // likewise, from then on until its tail was recorded
  uint32_t num_ready_ = 0;
  uint32_t capacity_ = 0;
  SpanTable table_;
  std::vector<PendingCopy> copies_;
  size_t counted_bytes_ = 0;    // of state_->sequence_bytes
  uint64_t counted_pages_ = 0;  // of state_->sequence_pages
};

}  // namespace kvlink::link
