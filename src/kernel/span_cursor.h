// SpanCursor: walks the rows of a span table in order of position, one piece of a block at a time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kvlink/view.h"

namespace kvlink::kernel {

// Rows [first_row, first_row + num_rows) of one block, at consecutive positions.
struct Piece {
  const BlockView* block = nullptr;
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  int32_t shift = 0;

  bool SameRows(const Piece& other) const {
    return *block == *other.block && first_row == other.first_row && num_rows == other.num_rows &&
           shift == other.shift;
  }
};

class SpanCursor {
 public:
  // Requires: the table's spans are valid and cover `position`.
  SpanCursor(const SpanTable& table, uint32_t tokens_per_block, uint32_t position)
      : table_(&table),
        tokens_per_block_(tokens_per_block),
        block_shift_(static_cast<uint32_t>(std::countr_zero(tokens_per_block))),
        position_(position) {
    const auto after =
        std::upper_bound(table.spans.begin(), table.spans.end(), position,
                         [](uint32_t p, const Span& span) { return p < span.position; });
    span_ = static_cast<uint32_t>(after - table.spans.begin()) - 1;
  }

  // The rows from here to the end of the block, the span, or `end`; end > position().
  Piece Next(uint32_t end) {
    const Span* span = &table_->spans[span_];
    while (position_ >= span->position + span->num_rows) span = &table_->spans[++span_];
    const uint32_t row = span->first_row + (position_ - span->position);
    const uint32_t row_in_block = row & (tokens_per_block_ - 1);
    const uint32_t span_end = span->position + span->num_rows;
    const uint32_t num_rows =
        std::min(tokens_per_block_ - row_in_block, std::min(end, span_end) - position_);
    position_ += num_rows;
    return {&table_->blocks[span->first_block + (row >> block_shift_)], row_in_block, num_rows,
            span->shift};
  }
  uint32_t position() const { return position_; }

 private:
  const SpanTable* table_;
  uint32_t tokens_per_block_, block_shift_;
  uint32_t position_;
  uint32_t span_;
};

}  // namespace kvlink::kernel
