#include "engine/tail_observer.h"

#include <algorithm>

#include "base/exp_sums.h"

namespace kvlink::engine {

void TailObserver::Begin(const Sequence& sequence, uint32_t prompt_tokens) {
  prompt_tokens_ = prompt_tokens;
  from_ = prompt_tokens - std::min(sequence.observed_rows(), prompt_tokens);
  wants_attention_ = sequence.computed_rows().empty();
  tail_ = {};
}

uint32_t TailObserver::first_output() const { return std::min(from_, prompt_tokens_ - 1); }

uint32_t TailObserver::NumOutputs(uint32_t first, uint32_t count) const {
  const uint32_t end = first + count;
  const uint32_t begin = std::max(first, first_output());
  return end > begin ? end - begin : 0;
}

std::optional<kernel::ObservedRows> TailObserver::Observe(uint32_t first, uint32_t count,
                                                          uint32_t batch_row) {
  const uint32_t begin = std::max(first, from_), end = first + count;
  if (!wants_attention_ || begin >= end) return std::nullopt;
  tail_.received.resize(prompt_tokens_, 0.0f);
  return kernel::ObservedRows{batch_row + (begin - first), end - begin, tail_.received.data()};
}

void TailObserver::AddLogits(std::span<const TokenId> prompt, uint32_t end, uint32_t num_outputs,
                             const float* logits, uint32_t vocab_size) {
  for (uint32_t i = 0; i < num_outputs; ++i) {
    const uint32_t row = end - num_outputs + i;
    if (row < from_ || row + 1 >= prompt_tokens_) continue;
    const std::span<const float> of_row(logits + size_t{i} * vocab_size, vocab_size);
    const double own = of_row[static_cast<size_t>(prompt[row + 1])];
    tail_.nll.push_back(static_cast<float>(base::SumExponentials(of_row).log_sum - own));
  }
}

}  // namespace kvlink::engine
