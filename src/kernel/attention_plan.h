// AttentionPlan: how one batch is attended in layers of one window, planned once for all of them.
//
//   sequences that share leading chunks
//     --> segments (cascade): one run of chunks, all their queries
//   segment --> tiles of queries --(split among threads)--> ranges of chunks --x KV head--> items
//
// A chunk is kChunkTokens positions; a row's result is made of one partial result a chunk, folded
// in chunk order from the first one that the row sees, so nothing here (grouping, tiles, splitting)
// can change its bits. A tile in which all its rows begin folds as it goes and keeps one record a
// row and head; any other keeps one a chunk too. Whoever finishes the last tile of a row folds the
// rest. Chunks that no row of a tile sees are left out. Cost: a few microseconds for a decode step
// of ten sequences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/batch_rows.h"
#include "kernel/tile_kernels.h"

namespace kvlink::kernel {

// Queries [first_query, first_query + num_queries), in order of limit, over chunks [chunk_begin,
// chunk_end) of one table.
struct QueryTile {
  const SpanTable* table = nullptr;
  uint32_t first_query = 0, num_queries = 0;
  uint32_t chunk_begin = 0, chunk_end = 0;
  // Of its first record of KV head 0, in records; kNoRecords: no row that sees it has a second
  // tile, so the tile writes the result itself (and folds).
  static constexpr size_t kNoRecords = ~size_t{0};
  size_t records = kNoRecords;
  bool folds = false;  // into one record a row: none of its rows sees an earlier chunk
  double cost = 0;

  // Records a row, query head and KV head.
  uint32_t num_chunk_records() const { return folds ? 1 : chunk_end - chunk_begin; }
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

  AttentionPlan(const KvShape& shape, uint32_t num_heads, uint32_t window, uint32_t max_tile_rows,
                bool cascade);

  // `rows` must stay as they are until the batch is done.
  void Build(const BatchRows& rows, int num_threads);

  std::span<const Query> queries() const { return queries_; }
  std::span<const QueryTile> tiles() const { return tiles_; }
  std::span<const WorkItem> items() const { return items_; }  // dearest first
  size_t num_records() const { return num_records_; }

  uint32_t FirstChunk(const Query& query) const { return query.begin(window_) / kChunkTokens; }
  // Whether a query of the tile takes part in it.
  bool Sees(const Query& query, const QueryTile& tile) const;
  uint32_t num_parts(uint32_t row) const { return num_parts_[row]; }
  uint32_t first_part(uint32_t row) const { return first_part_[row]; }
  const RowPart& part(uint32_t index) const { return parts_[index]; }

  uint32_t window() const { return window_; }
  uint32_t max_tile_queries() const { return max_tile_queries_; }
  uint32_t heads_per_kv() const { return heads_per_kv_; }
  size_t tile_records(const QueryTile& tile) const {  // of one KV head
    return size_t{tile.num_queries} * heads_per_kv_ * tile.num_chunk_records();
  }

 private:
  bool SameChunk(const SequenceRows& a, const SequenceRows& b, uint32_t chunk) const;
  void GroupFrom(uint32_t* begin, uint32_t* end, uint32_t chunk);
  void AddSegment(std::span<const uint32_t> members, uint32_t chunk_begin, uint32_t chunk_end);
  void AddTile(const SpanTable* table, uint32_t first_query, uint32_t num_queries,
               uint32_t chunk_begin, uint32_t chunk_end);
  void SplitTiles(int num_threads);
  void LinkParts(size_t num_rows);
  void OrderItems();

  const KvShape shape_;
  const uint32_t heads_per_kv_, window_;
  const uint32_t max_tile_queries_;
  const bool cascade_;

  std::span<const SequenceRows> sequences_;  // of the batch
  std::vector<uint32_t> members_;            // indices of sequences_, permuted into groups
  std::vector<Query> queries_;
  std::vector<QueryTile> whole_tiles_, tiles_;
  std::vector<uint32_t> tile_order_;
  std::vector<WorkItem> items_;
  std::vector<RowPart> parts_;
  std::vector<uint32_t> first_part_, last_part_, num_parts_;
  size_t num_records_ = 0;
};

}  // namespace kvlink::kernel
