// BatchRows: the rows of one batch, checked, sorted and placed; the same for every layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/paged_attention.h"

namespace kvlink::kernel {

struct Query {
  uint32_t row = 0;    // of the batch
  uint32_t limit = 0;  // positions before its end: its own + 1

  // The first position that it sees.
  uint32_t begin(uint32_t window) const {
    return window == 0 || limit <= window ? 0 : limit - window;
  }
};

// Where a row of the batch lies.
struct RowPlace {
  BlockView block;
  uint32_t block_row = 0;
  uint32_t position = 0;
  int32_t shift = 0;
  bool write = true;
};

// The rows of one table.
struct SequenceRows {
  const SpanTable* table = nullptr;
  std::span<const Query> queries;  // in order of limit

  uint32_t limit() const { return queries.back().limit; }
};

class BatchRows {
 public:
  // kInvalidArgument names the table, row or span and the values; what is kept means nothing then.
  Status Build(const KvShape& shape, std::span<const SpanTable* const> tables,
               std::span<const BatchRow> rows);

  size_t num_rows() const { return places_.size(); }
  std::span<const RowPlace> places() const { return places_; }            // by row of the batch
  std::span<const SequenceRows> sequences() const { return sequences_; }  // those with rows

 private:
  Status Sort(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows);
  Status Place(const KvShape& shape, std::span<const SpanTable* const> tables,
               std::span<const BatchRow> rows);

  std::vector<uint32_t> begin_, end_;  // in sorted_, by table
  std::vector<Query> sorted_;          // by table, then limit
  std::vector<SequenceRows> sequences_;
  std::vector<RowPlace> places_;
};

// kInvalidArgument unless the spans cover positions [0, num_positions) without gaps and every row
// of them lies in a page (and, where it has one, a sound difference block).
Status ValidateSpanTable(const SpanTable& table, const KvShape& shape, uint32_t num_positions);

}  // namespace kvlink::kernel
