// How far a next-token distribution is from the exact one.
#pragma once

#include <span>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink::cli {

// KL(exact || other) in nats, of two rows of logits [vocabulary]; infinite when `other` has a value
// that is not finite.
double Divergence(std::span<const float> exact, std::span<const float> other);

// The most likely token; the lowest id of equal ones, as greedy sampling takes it.
TokenId Likeliest(std::span<const float> logits);

// By how much `other` moves the difference between the two most likely tokens of `exact`, in nats.
double GapShift(std::span<const float> exact, std::span<const float> other);

// A distribution of which the most likely tokens are known: exp(logprob) each, the rest lumped.
struct ListedToken {
  TokenId token = -1;
  float logprob = 0;
};

// KL(exact || other) over the tokens that both list, and one more for the rest of the mass. Lumping
// never adds divergence, so this is a lower bound; with 64 tokens the rest is small.
double ListedDivergence(std::span<const ListedToken> exact, std::span<const ListedToken> other);

}  // namespace kvlink::cli
