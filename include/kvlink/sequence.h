// Sequence: one branch of a request while it runs, with the pages that hold its rows.
//
// An engine reserves room, writes rows through the table's views, commits them, and forks branches.
// A sequence that borrows a similar prompt's rows (Plan::similar) runs a selection of rows instead
// of all that are not ready, and is judged before its first token leaves.
// Threads: that of the cache's other sequences (kvlink/cache.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "kvlink/kv_shape.h"
#include "kvlink/similar.h"
#include "kvlink/status.h"
#include "kvlink/view.h"

namespace kvlink {

// One branch's context. Move-only through unique_ptr; destroying it releases the pages, which stay
// as evictable cache.
class Sequence {
 public:
  virtual ~Sequence() = default;
  virtual uint64_t id() const = 0;

  // Rows [0, num_ready) hold valid K and V. Positions below it need no write (their rows are shared
  // and equal).
  virtual uint32_t num_ready() const = 0;
  virtual uint32_t capacity() const = 0;  // positions that have a place

  // Makes room for positions [0, num_tokens): all or nothing. kResourceExhausted when pages run out
  // (after evicting all that can be evicted): preempt somebody. Invalidates views.
  virtual Status Reserve(uint32_t num_tokens) = 0;

  // Views over positions [0, capacity). Rows >= num_ready are written by the engine through the
  // same views: row r of position p goes to the page, or, where slots[row] >= 0, to that difference
  // cell.
  virtual const SpanTable& table() const = 0;

  // Rows [num_ready, num_ready + tokens.size()) are written: they hold these tokens. Full blocks
  // become findable unless the request said store = false.
  virtual void Commit(std::span<const TokenId> tokens) = 0;

  // Layers whose input must be left in the page of every row that runs, as F16 behind the tiles:
  // the k-th at shape.checkpoints_offset() + row * shape.checkpoint_bytes + k * 2 * embedding.
  virtual std::span<const uint32_t> checkpoint_layers() const { return {}; }
  // How many of the prompt's last rows are to be observed while they run: of a prompt that others
  // may borrow from, and of one that borrows. 0: none.
  virtual uint32_t observed_rows() const { return 0; }
  // What was seen of them, with the logits [vocabulary] of the last one. Once the prompt's last row
  // is committed, and before CheckFirstToken; again after each enlargement. Rows that were ready
  // and did not run are left out. Nothing happens where there is no room for it.
  virtual void RecordTail(const PromptTail& /*tail*/, std::span<const float> /*logits*/) {}

  // --- Sequences that borrow a donor's rows (Plan::similar). They store nothing, and neither do
  // their branches. ---

  // The prompt's rows that run, ascending, all from num_ready() on; the other rows behind the exact
  // ones are the donor's. Empty: this sequence borrows none, and all rows run. Rows are still
  // committed in order of position: a run of borrowed rows goes with what is computed behind it.
  virtual std::span<const Selection::Range> computed_rows() const = 0;

  // Modes whose rows enter and leave the network at different layers. All bands run, one after the
  // other, each with all of its rows; then all rows of the prompt are committed at once.
  virtual bool runs_in_bands() const { return false; }
  // What runs next, once all of the band before has run; none: commit. Begins again after kEnlarge.
  virtual std::optional<LayerBand> NextBand() { return std::nullopt; }
  // The donor's residual stream at what `layer` reads, of the row at `position`: `out` [embedding].
  // False: it was not recorded.
  virtual bool ReadCheckpoint(uint32_t /*layer*/, uint32_t /*position*/,
                              std::span<float> /*out*/) const {
    return false;
  }

  // The backward check, before the first token leaves: `logits` [vocabulary] of the prompt's last
  // row, with all rows committed.
  //   kAccept   go on
  //   kEnlarge  more rows are selected now: num_ready() is back at the end of the exact rows, and
  //             all of computed_rows() run again (views have changed)
  //   kFallBack drop this sequence and begin another with similar = kOff
  // Requires: computed_rows() is not empty.
  virtual Verdict CheckFirstToken(std::span<const float> logits) = 0;

  // A branch that shares rows [0, num_tokens) copy-on-write; num_tokens <= num_ready.
  // `max_new_tokens` decides between a difference block and a full copy of the tail block.
  // kResourceExhausted when there is no page for the copy; kFailedPrecondition when rows are
  // borrowed and the first token was not checked: they may all run again.
  virtual Result<std::unique_ptr<Sequence>> Fork(uint32_t num_tokens, uint32_t max_new_tokens) = 0;
};

}  // namespace kvlink
