// FallbackBudget: what failed attempts at similar reuse may waste, as a share of all compute, so
// that a day on which everything fails costs a few percent and not half.
//
// Invariant: wasted + reserved <= share * (computed + wasted + reserved), after every call. An
// attempt reserves the most it can waste before it starts; when it is over, what it wasted is
// counted and the rest is given back. Compute is in layer-rows, or any other unit used throughout.
// Not thread-safe.
#pragma once

#include <cstdint>

namespace kvlink::verify {

class FallbackBudget {
 public:
  explicit FallbackBudget(double share) : share_(share) {}

  // Useful compute, by anyone: prefill and decode, accepted attempts, the full run of a fallback.
  void CountComputed(uint64_t amount) { computed_ += amount; }
  // True: an attempt may waste up to `amount`; exactly one Settle follows.
  [[nodiscard]] bool TryReserve(uint64_t amount);
  // Requires: wasted <= reserved, the amount of one TryReserve.
  void Settle(uint64_t reserved, uint64_t wasted);

  uint64_t computed() const { return computed_; }
  uint64_t wasted() const { return wasted_; }
  uint64_t reserved() const { return reserved_; }
  double wasted_share() const;  // of all compute so far

 private:
  const double share_;
  uint64_t computed_ = 0, wasted_ = 0, reserved_ = 0;
};

}  // namespace kvlink::verify
