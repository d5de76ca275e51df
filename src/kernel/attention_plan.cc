#include "kernel/attention_plan.h"

#include <algorithm>
#include <numeric>

#include "kernel/span_cursor.h"

namespace kvlink::kernel {
namespace {

// A tile's cost a position, in units of one row's: reading K and V is worth some rows.
constexpr double kReadCost = 8;
// Items a thread that the work is cut into, so that the last ones to finish are small.
constexpr int kItemsPerThread = 8;
// Splitting stops where its partial results would take more than this.
constexpr size_t kMaxSplitBytes = size_t{64} << 20;

bool Before(const Query& a, const Query& b) { return a.limit < b.limit; }

}  // namespace

AttentionPlan::AttentionPlan(const KvShape& shape, uint32_t num_heads, uint32_t window,
                             uint32_t max_tile_rows, bool cascade)
    : shape_(shape),
      heads_per_kv_(num_heads / shape.num_kv_heads),
      window_(window),
      max_tile_queries_(std::max(1u, max_tile_rows / heads_per_kv_)),
      cascade_(cascade) {}

void AttentionPlan::Build(const BatchRows& rows, int num_threads) {
  queries_.clear();
  whole_tiles_.clear();
  tiles_.clear();
  items_.clear();
  num_records_ = 0;
  sequences_ = rows.sequences();
  members_.resize(sequences_.size());
  std::iota(members_.begin(), members_.end(), 0);
  uint32_t first_chunk = ~0u;
  for (const SequenceRows& sequence : sequences_)
    first_chunk = std::min(first_chunk, FirstChunk(sequence.queries.front()));
  GroupFrom(members_.data(), members_.data() + members_.size(), first_chunk);
  SplitTiles(num_threads);
  LinkParts(rows.num_rows());
  OrderItems();
}

// Whether both read the whole chunk, from the same rows of the same blocks.
bool AttentionPlan::SameChunk(const SequenceRows& a, const SequenceRows& b, uint32_t chunk) const {
  const uint32_t begin = chunk * kChunkTokens, end = begin + kChunkTokens;
  if (a.limit() < end || b.limit() < end) return false;
  const auto plain = [&](const SequenceRows& s) {
    const Span& span = s.table->spans.front();
    return span.first_row == 0 && span.num_rows >= end;
  };
  const uint32_t rows = shape_.tokens_per_block;
  if (plain(a) && plain(b)) {
    const Span &sa = a.table->spans.front(), &sb = b.table->spans.front();
    const BlockView* pa = a.table->blocks.data() + sa.first_block + begin / rows;
    const BlockView* pb = b.table->blocks.data() + sb.first_block + begin / rows;
    return sa.shift == sb.shift && std::equal(pa, pa + kChunkTokens / rows, pb);
  }
  SpanCursor ca(*a.table, rows, begin), cb(*b.table, rows, begin);
  while (ca.position() < end) {
    if (!ca.Next(end).SameRows(cb.Next(end))) return false;
  }
  return true;
}

// Plans chunks [chunk, ...) of the sequences in [begin, end), which share all earlier chunks that
// any of them sees.
void AttentionPlan::GroupFrom(uint32_t* begin, uint32_t* end, uint32_t chunk) {
  const auto done = [&](uint32_t i) { return sequences_[i].limit() <= chunk * kChunkTokens; };
  // A sequence that fills a tile gains nothing from others, and would have to keep its partial
  // results behind the shared chunks.
  const auto may_share = [&](uint32_t i) {
    return cascade_ && sequences_[i].queries.size() < max_tile_queries_;
  };
  for (uint32_t* leader = begin; leader != end;) {
    const SequenceRows& first = sequences_[*leader];
    if (done(*leader)) {
      leader++;
      continue;
    }
    const auto shares = [&](uint32_t c) {
      return [&, c](uint32_t i) { return SameChunk(first, sequences_[i], c); };
    };
    uint32_t* group_end = leader + 1;
    if (may_share(*leader)) {
      const auto together = shares(chunk);
      group_end =
          std::partition(leader + 1, end, [&](uint32_t i) { return may_share(i) && together(i); });
    }
    if (group_end == leader + 1) {
      AddSegment({leader, 1}, chunk, (first.limit() + kChunkTokens - 1) / kChunkTokens);
    } else {
      uint32_t shared_end = chunk + 1;
      while (std::all_of(leader + 1, group_end, shares(shared_end))) shared_end++;
      AddSegment({leader, group_end}, chunk, shared_end);
      GroupFrom(leader, group_end, shared_end);
    }
    leader = group_end;
  }
}

void AttentionPlan::AddSegment(std::span<const uint32_t> members, uint32_t chunk_begin,
                               uint32_t chunk_end) {
  const uint32_t begin = chunk_begin * kChunkTokens;
  const uint32_t first_query = static_cast<uint32_t>(queries_.size());
  for (uint32_t i : members) {
    const std::span<const Query> rows = sequences_[i].queries;
    const auto first = std::upper_bound(rows.begin(), rows.end(), Query{0, begin}, Before);
    const auto last = std::partition_point(
        first, rows.end(), [&](const Query& query) { return FirstChunk(query) < chunk_end; });
    queries_.insert(queries_.end(), first, last);
  }
  if (members.size() > 1) std::sort(queries_.begin() + first_query, queries_.end(), Before);

  const uint32_t num_queries = static_cast<uint32_t>(queries_.size()) - first_query;
  const uint32_t num_tiles = (num_queries + max_tile_queries_ - 1) / max_tile_queries_;
  for (uint32_t t = 0; t < num_tiles; t++) {
    const uint32_t offset = static_cast<uint32_t>(uint64_t{num_queries} * t / num_tiles);
    const uint32_t next = static_cast<uint32_t>(uint64_t{num_queries} * (t + 1) / num_tiles);
    AddTile(sequences_[members[0]].table, first_query + offset, next - offset, chunk_begin,
            chunk_end);
  }
}

// The chunks of [chunk_begin, chunk_end) that any of the queries sees.
void AttentionPlan::AddTile(const SpanTable* table, uint32_t first_query, uint32_t num_queries,
                            uint32_t chunk_begin, uint32_t chunk_end) {
  const Query& first = queries_[first_query];
  const uint32_t limit = queries_[first_query + num_queries - 1].limit;
  QueryTile tile;
  tile.table = table;
  tile.first_query = first_query;
  tile.num_queries = num_queries;
  tile.chunk_begin = std::max(chunk_begin, FirstChunk(first));
  tile.chunk_end = std::min(chunk_end, (limit + kChunkTokens - 1) / kChunkTokens);
  const uint32_t begin = std::max(tile.chunk_begin * kChunkTokens, first.begin(window_));
  tile.cost = (kReadCost + num_queries * heads_per_kv_) *
              (std::min(limit, tile.chunk_end * kChunkTokens) - begin);
  whole_tiles_.push_back(tile);
}

bool AttentionPlan::Sees(const Query& query, const QueryTile& tile) const {
  return query.limit > tile.chunk_begin * kChunkTokens && FirstChunk(query) < tile.chunk_end;
}

// Cuts dear tiles into ranges of chunks, in order.
void AttentionPlan::SplitTiles(int num_threads) {
  double total = 0;
  for (const QueryTile& tile : whole_tiles_) total += tile.cost * shape_.num_kv_heads;
  const double target = total / (num_threads * kItemsPerThread);
  size_t split_bytes = 0;
  for (const QueryTile& whole : whole_tiles_) {
    const uint32_t chunks = whole.chunk_end - whole.chunk_begin;
    uint32_t ranges = 1;
    if (num_threads > 1 && whole.cost > 1.5 * target) {
      ranges = std::min(chunks, static_cast<uint32_t>(whole.cost / target) + 1);
      const size_t bytes = size_t{chunks} * whole.num_queries * heads_per_kv_ *
                           shape_.num_kv_heads * RecordFloats(shape_.head_dim) * sizeof(float);
      if (split_bytes + bytes > kMaxSplitBytes) ranges = 1;
      if (ranges > 1) split_bytes += bytes;
    }
    for (uint32_t i = 0; i < ranges; i++) {
      QueryTile tile = whole;
      tile.chunk_begin = whole.chunk_begin + chunks * i / ranges;
      tile.chunk_end = whole.chunk_begin + chunks * (i + 1) / ranges;
      tile.cost = whole.cost * (tile.chunk_end - tile.chunk_begin) / chunks;
      tiles_.push_back(tile);
    }
  }
}

void AttentionPlan::LinkParts(size_t num_rows) {
  parts_.clear();
  first_part_.assign(num_rows, kNoPart);
  last_part_.assign(num_rows, kNoPart);
  num_parts_.assign(num_rows, 0);
  for (uint32_t t = 0; t < tiles_.size(); t++) {
    QueryTile& tile = tiles_[t];
    tile.folds = true;
    for (uint32_t i = 0; i < tile.num_queries; i++) {
      const Query& query = queries_[tile.first_query + i];
      if (!Sees(query, tile)) continue;
      tile.folds &= FirstChunk(query) >= tile.chunk_begin;
      const uint32_t index = static_cast<uint32_t>(parts_.size());
      parts_.push_back({t, i, kNoPart});
      uint32_t& last = last_part_[query.row];
      (last == kNoPart ? first_part_[query.row] : parts_[last].next) = index;
      last = index;
      num_parts_[query.row]++;
    }
  }
  for (QueryTile& tile : tiles_) {
    bool alone = true;
    for (uint32_t i = 0; i < tile.num_queries; i++) {
      const Query& query = queries_[tile.first_query + i];
      alone &= !Sees(query, tile) || num_parts_[query.row] == 1;
    }
    if (alone) continue;
    tile.records = num_records_;
    num_records_ += tile_records(tile) * shape_.num_kv_heads;
  }
}

void AttentionPlan::OrderItems() {
  tile_order_.resize(tiles_.size());
  std::iota(tile_order_.begin(), tile_order_.end(), 0);
  std::sort(tile_order_.begin(), tile_order_.end(), [&](uint32_t a, uint32_t b) {
    return tiles_[a].cost != tiles_[b].cost ? tiles_[a].cost > tiles_[b].cost : a < b;
  });
  for (uint32_t tile : tile_order_) {
    for (uint32_t head = 0; head < shape_.num_kv_heads; head++) items_.push_back({tile, head});
  }
}

}  // namespace kvlink::kernel
