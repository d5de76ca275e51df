// TailObserver: what a sequence wants to know of its prompt's last rows, collected while they run,
// in one batch or in several.
//
//   rows of the prompt   [ 0 ........................ from ........ last ]
//   needs logits                                      x  x  x  x  x  x
//   attention received   <---- of all rows ---------- x  x  x  x  x  x    (prompts that may lend)
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernel/paged_attention.h"
#include "kvlink/cache.h"

namespace kvlink::engine {

class TailObserver {
 public:
  // Requires: no row of the prompt has run yet, or all run again.
  void Begin(const Sequence& sequence, uint32_t prompt_tokens);
  bool has_begun() const { return prompt_tokens_ > 0; }

  // Rows from here on must give logits.
  uint32_t first_output() const;
  // Of rows [first, first + count), how many of the last ones must give logits: those observed, and
  // the prompt's last one.
  uint32_t NumOutputs(uint32_t first, uint32_t count) const;
  // What the model shall observe of them, if they are rows [batch_row, ...) of its batch.
  std::optional<kernel::ObservedRows> Observe(uint32_t first, uint32_t count, uint32_t batch_row);
  // The logits [num_outputs, vocabulary] of the last rows before `end`.
  void AddLogits(std::span<const TokenId> prompt, uint32_t end, uint32_t num_outputs,
                 const float* logits, uint32_t vocab_size);

  bool has_tail() const { return from_ < prompt_tokens_; }
  const PromptTail& tail() const { return tail_; }

 private:
  uint32_t prompt_tokens_ = 0;
  uint32_t from_ = 0;  // the first row that is observed; prompt_tokens_: none
  bool wants_attention_ = false;
  PromptTail tail_;
};

}  // namespace kvlink::engine
