// Runs of equal tokens in two sequences, in the order of both. Two ways: a shortest edit script
// (Myers 1986, greedy forward search), which keeps as many tokens as there can be but costs
// (edits)^2; and unique runs, for what is too different for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvlink/similar.h"

namespace kvlink::match {

// All maximal runs of one longest common subsequence, of any length. None when more than
// `max_edits` tokens of both would be inserted and deleted. Time O((n + m) + edits^2) on average,
// memory 4 * edits^2 bytes.
std::optional<std::vector<ReuseSpan>> RunsOfShortestEdit(std::span<const TokenId> a,
                                                         std::span<const TokenId> b,
                                                         uint32_t max_edits);

// Runs of at least `min_run` tokens that start with `min_run` tokens which occur once in a and once
// in b: the longest chain of them in the order of both (a longest increasing subsequence). Time
// O((n + m) log).
std::vector<ReuseSpan> RunsOfUniqueGrams(std::span<const TokenId> a, std::span<const TokenId> b,
                                         uint32_t min_run);

// How many tokens of a lie in such runs, in whatever order.
uint32_t TokensInUniqueGrams(std::span<const TokenId> a, std::span<const TokenId> b,
                             uint32_t min_run);

}  // namespace kvlink::match
