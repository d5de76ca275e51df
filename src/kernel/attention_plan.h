// AttentionPlan: how one batch is attended, planned once for all layers.
//
//   rows --(by sequence, position)--> queries
//   sequences that share leading chunks --> segments (cascade): one run of chunks, all their
//   queries segment --> tiles of queries --(split among threads)--> ranges of chunks --x KV head-->
//   items
//
// A chunk is kChunkTokens positions; a row's result is made of one partial result a chunk, folded
// in chunk order, so nothing here (grouping, tiles, splitting) can change its bits. A tile that
// starts at chunk 0 folds as it goes and keeps one record a row and head; any other keeps one a
// chunk too. Whoever finishes the last tile of a row folds the rest. Cost: a few microseconds for a
// decode step of ten sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/paged_attention.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {

struct Query {
  uint32_t row = 0;    // of the batch
  uint32_t limit = 0;  // positions that it sees: its own + 1
};

// Where a row of the batch lies.
struct RowPlace {
  BlockView block;
  uint32_t block_row = 0;
  uint32_t position = 0;
  int32_t shift = 0;
  bool write = true;
};

// Queries [first_query, first_query + num_queries), in order of limit, over chunks [chunk_begin,
// chunk_end) of one table.
struct QueryTile {
  const SpanTable* table = nullptr;
  uint32_t first_query = 0, num_queries = 0;
  uint32_t chunk_begin = 0, chunk_end = 0;
  // Of its first record of KV head 0, in records; kNoRecords: no row has a second tile, so the tile
  // writes the result itself.
  static constexpr size_t kNoRecords = ~size_t{0};
  size_t records = kNoRecords;
  double cost = 0;

  // Records a row, query head and KV head.
  uint32_t num_chunk_records() const { return chunk_begin == 0 ? 1 : chunk_end - chunk_begin; }
};

struct WorkItem {
  uint32_t tile = 0;
  uint32_t kv_head = 0;
};

// A tile that takes part in a row's result; a row's parts are linked in chunk order.
struct RowPart {
  uint32_t tile = 0;
  uint32_t query_in_tile = 0;
  uint32_t next = 0;
};

class AttentionPlan {
 public:
  static constexpr uint32_t kNoPart = 0xffffffffu;

  AttentionPlan(const KvShape& shape, uint32_t num_heads, uint32_t max_tile_rows, bool cascade);

  // kInvalidArgument names the table, row or span and the values; the plan is then unusable until
  // the next Build.
  Status Build(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows,
               int num_threads);

  std::span<const RowPlace> places() const { return places_; }  // by row of the batch
  std::span<const Query> queries() const { return queries_; }
  std::span<const QueryTile> tiles() const { return tiles_; }
  std::span<const WorkItem> items() const { return items_; }  // dearest first
  size_t num_records() const { return num_records_; }

  uint32_t num_parts(uint32_t row) const { return num_parts_[row]; }
  uint32_t first_part(uint32_t row) const { return first_part_[row]; }
  const RowPart& part(uint32_t index) const { return parts_[index]; }

  uint32_t max_tile_queries() const { return max_tile_queries_; }
  uint32_t heads_per_kv() const { return heads_per_kv_; }
  size_t tile_records(const QueryTile& tile) const {  // of one KV head
    return size_t{tile.num_queries} * heads_per_kv_ * tile.num_chunk_records();
  }

 private:
  struct SequenceRows {
    const SpanTable* table = nullptr;
    uint32_t first = 0, num = 0;  // in sorted_
    uint32_t limit = 0;           // of its last row
  };

  Status SortRows(size_t num_tables, std::span<const BatchRow> rows);
  Status PlaceRows(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows);
  bool SameChunk(const SequenceRows& a, const SequenceRows& b, uint32_t chunk) const;
  void GroupFrom(uint32_t* begin, uint32_t* end, uint32_t chunk);
  void AddSegment(std::span<const uint32_t> members, uint32_t chunk_begin, uint32_t chunk_end);
  void SplitTiles(int num_threads);
  void LinkParts(size_t num_rows);
  void OrderItems();

  const KvShape shape_;
  const uint32_t heads_per_kv_;
  const uint32_t max_tile_queries_;
  const bool cascade_;

  std::vector<uint32_t> sequence_begin_;  // counting sort
  std::vector<Query> sorted_;             // by sequence, then limit
  std::vector<SequenceRows> sequences_;   // by table
  std::vector<uint32_t> members_;         // sequences with rows, permuted into groups
  std::vector<RowPlace> places_;
  std::vector<Query> queries_;
  std::vector<QueryTile> whole_tiles_, tiles_;
  std::vector<uint32_t> tile_order_;
  std::vector<WorkItem> items_;
  std::vector<RowPart> parts_;
  std::vector<uint32_t> first_part_, last_part_, num_parts_;
  size_t num_records_ = 0;
};

// kInvalidArgument unless the spans cover positions [0, num_positions) without gaps and every row
// of them lies in a page (and, where it has one, a sound difference block).
Status ValidateSpanTable(const SpanTable& table, const KvShape& shape, uint32_t num_positions);

}  // namespace kvlink::kernel
