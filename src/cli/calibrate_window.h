// Windows of the fingerprints against the lengths of prompts: is the right donor found? Retrieval
// alone, no model runs.
//
//   donor    sentences drawn from the corpus, to a length
//   prompt   the same, with an edit in about every `gap` tokens: another one, one more, one less
// The store holds every prompt's donor, and twice as many strangers made of the same sentences.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "match/normal_tokens.h"

namespace kvlink::cli {

struct WindowOptions {
  std::vector<uint32_t> windows = {4, 8, 16, 32};
  std::vector<uint32_t> lengths = {64, 128, 256, 512, 1024, 2048};
  std::vector<uint32_t> gaps = {24, 48, 96};  // tokens between edits, on average
  uint32_t queries = 60;
  uint64_t seed = 1;
};

struct WindowFigures {
  uint32_t window = 0, length = 0, gap = 0;
  uint32_t queries = 0, right = 0, wrong = 0;  // donors found: the prompt's own, another one
  double find_us = 0;                          // processor time of a lookup, with its sketch
  double recall() const { return queries == 0 ? 0 : static_cast<double>(right) / queries; }
};

// `sentences`: token ids of each. Requires: at least ten of them.
std::vector<WindowFigures> MeasureWindows(std::span<const std::vector<TokenId>> sentences,
                                          const match::NormalTokens& classes,
                                          const WindowOptions& options);

// Tables of the report: recall by length and window, one for each gap.
std::string WindowTables(std::span<const WindowFigures> figures, const WindowOptions& options);

}  // namespace kvlink::cli
