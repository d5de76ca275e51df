// Align: which rows of a donor have a new prompt's tokens, on raw ids.
//
//   new    | common prefix | xxx |== run 1 ==| x |=== run 2 ===| common suffix |
//   donor  | common prefix | y |== run 1 ==| yyyy |=== run 2 ===| common suffix |
//
// Prefix and suffix are compared, the middle goes through a shortest edit script within a bound,
// and beyond the bound through its unique runs. Then runs that are too short are dropped, what is
// left grows into the gaps, and rows are given up that must not be reused whatever their tokens:
// those of the first positions, to which every model sends attention it has no use for, and those
// under another role.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvlink/similar.h"
#include "kvlink/similar_options.h"

namespace kvlink::match {

constexpr uint32_t kSinkRows = 4;

struct Alignment {
  std::vector<ReuseSpan> spans;  // the common prefix first, when there is one
  uint32_t num_matched = 0;      // their rows
  uint32_t num_moved = 0;        // rows outside whose tokens the donor has elsewhere, in long runs
  bool within_bound = true;      // false: more edits than allowed, spans are unique runs
};

struct AlignOptions {
  uint32_t min_run = 16;
  uint32_t max_edits = 0;  // MaxEdits(...)
  // By token id: not 0 for a special token (turn and role markers). Empty: roles are not compared.
  std::span<const uint8_t> special = {};
};

Alignment Align(std::span<const TokenId> tokens, std::span<const TokenId> donor,
                const AlignOptions& options);

// The bound for a prompt of `num_tokens` when `gain_rows` may be reused and a row of prefill costs
// `us_per_row`: so many edits that the search costs at most lookup_cost_share of what is to gain.
uint32_t MaxEdits(uint32_t num_tokens, uint32_t gain_rows, double us_per_row,
                  const SimilarOptions& options);

// The parts of the spans from `position` on.
std::vector<ReuseSpan> SpansBehind(std::span<const ReuseSpan> spans, uint32_t position);

}  // namespace kvlink::match
