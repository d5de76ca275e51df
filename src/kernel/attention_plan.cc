#include "kernel/attention_plan.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kernel/span_cursor.h"

namespace kvlink::kernel {
namespace {

// A tile's cost a position, in units of one row's: reading K and V is worth some rows.
constexpr double kReadCost = 8;
// Items a thread that the work is cut into, so that the last ones to finish are small.
constexpr int kItemsPerThread = 4;
// Splitting stops where its partial results would take more than this.
constexpr size_t kMaxSplitBytes = size_t{64} << 20;

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "attention: " + std::move(message));
}

std::string Str(uint64_t value) { return std::to_string(value); }

Status ValidateDifference(const DifferenceView& difference, const KvShape& shape,
                          const std::string& where) {
  const uint32_t rows = shape.tokens_per_block;
  if (difference.cells == nullptr || difference.slots == nullptr)
    return Invalid(where + ": its difference block has no cells or no slots");
  if (difference.slot_stride != 0 && difference.slot_stride < rows) {
    return Invalid(where + ": slot stride " + Str(difference.slot_stride) +
                   " of its difference block is below the " + Str(rows) + " rows of a block");
  }
  const uint32_t maps = difference.slot_stride == 0 ? 1 : shape.num_layers;
  const int capacity = static_cast<int>(std::min<uint32_t>(difference.capacity, 128));
  for (uint32_t layer = 0; layer < maps; layer++) {
    const int8_t* slots = difference.slots + size_t{layer} * difference.slot_stride;
    const int8_t largest = *std::max_element(slots, slots + rows);
    if (largest >= capacity) {
      return Invalid(where + ": slot " + std::to_string(largest) + " of layer " + Str(layer) +
                     " in a difference block of capacity " + Str(difference.capacity));
    }
  }
  return Status::Ok();
}

// The first num_rows rows of span `index` lie in sound blocks.
Status ValidateRun(const SpanTable& table, size_t index, uint64_t num_rows, const KvShape& shape) {
  const Span& span = table.spans[index];
  const auto where = [&] {
    return "span " + Str(index) + " (first block " + Str(span.first_block) + ", rows " +
           Str(span.first_row) + " + " + Str(span.num_rows) + ")";
  };
  const uint64_t rows = shape.tokens_per_block;
  const uint64_t begin = span.first_block + span.first_row / rows;
  const uint64_t last = span.first_block + (span.first_row + num_rows - 1) / rows;
  if (last >= table.blocks.size())
    return Invalid(where() + " needs block " + Str(last) + " of " + Str(table.blocks.size()));
  for (uint64_t b = begin; b <= last; b++) {
    const BlockView& block = table.blocks[b];
    if (block.page == nullptr) return Invalid(where() + ": block " + Str(b) + " has no page");
    if (block.difference == nullptr) continue;
    Status s = ValidateDifference(*block.difference, shape, where() + ", block " + Str(b));
    if (!s.ok()) return s;
  }
  return Status::Ok();
}

}  // namespace

Status ValidateSpanTable(const SpanTable& table, const KvShape& shape, uint32_t num_positions) {
  uint64_t covered = 0;
  for (size_t i = 0; i < table.spans.size() && covered < num_positions; i++) {
    const Span& span = table.spans[i];
    if (span.position != covered) {
      return Invalid("span " + Str(i) + " starts at position " + Str(span.position) +
                     " instead of " + Str(covered));
    }
    if (span.num_rows == 0) continue;
    if (int64_t{span.position} < span.shift) {
      return Invalid("span " + Str(i) + " at position " + Str(span.position) + " has shift " +
                     std::to_string(span.shift) + ": its rows would come from before position 0");
    }
    const uint64_t wanted = std::min<uint64_t>(span.num_rows, num_positions - covered);
    if (Status s = ValidateRun(table, i, wanted, shape); !s.ok()) return s;
    covered += span.num_rows;
  }
  if (covered < num_positions) {
    return Invalid("position " + Str(num_positions - 1) + " is not covered: the spans end at " +
                   Str(covered));
  }
  return Status::Ok();
}

AttentionPlan::AttentionPlan(const KvShape& shape, uint32_t num_heads, uint32_t max_tile_rows,
                             bool cascade)
    : shape_(shape),
      heads_per_kv_(num_heads / shape.num_kv_heads),
      max_tile_queries_(std::max(1u, max_tile_rows / heads_per_kv_)),
      cascade_(cascade) {}

Status AttentionPlan::Build(std::span<const SpanTable* const> tables,
                            std::span<const BatchRow> rows, int num_threads) {
  queries_.clear();
  whole_tiles_.clear();
  tiles_.clear();
  items_.clear();
  num_records_ = 0;
  if (Status s = SortRows(tables.size(), rows); !s.ok()) return s;
  if (Status s = PlaceRows(tables, rows); !s.ok()) return s;
  members_.clear();
  for (uint32_t i = 0; i < sequences_.size(); i++) {
    if (sequences_[i].num > 0) members_.push_back(i);
  }
  GroupFrom(members_.data(), members_.data() + members_.size(), 0);
  SplitTiles(num_threads);
  LinkParts(rows.size());
  OrderItems();
  return Status::Ok();
}

Status AttentionPlan::SortRows(size_t num_tables, std::span<const BatchRow> rows) {
  sequence_begin_.assign(num_tables + 1, 0);
  for (size_t r = 0; r < rows.size(); r++) {
    const BatchRow& row = rows[r];
    if (row.sequence >= num_tables) {
      return Invalid("row " + Str(r) + " is of sequence " + Str(row.sequence) + " of " +
                     Str(num_tables));
    }
    if (row.position >= 0x7fffffffu)
      return Invalid("row " + Str(r) + " is at position " + Str(row.position));
    sequence_begin_[row.sequence + 1]++;
  }
  std::partial_sum(sequence_begin_.begin(), sequence_begin_.end(), sequence_begin_.begin());
  sequences_.assign(num_tables, {});
  for (uint32_t i = 0; i < num_tables; i++) sequences_[i].first = sequence_begin_[i];
  sorted_.resize(rows.size());
  for (uint32_t r = 0; r < rows.size(); r++) {
    SequenceRows& sequence = sequences_[rows[r].sequence];
    sorted_[sequence.first + sequence.num++] = {r, rows[r].position + 1};
  }
  for (uint32_t i = 0; i < num_tables; i++) {
    SequenceRows& sequence = sequences_[i];
    if (sequence.num == 0) continue;
    Query* begin = &sorted_[sequence.first];
    Query* end = begin + sequence.num;
    const auto before = [](const Query& a, const Query& b) { return a.limit < b.limit; };
    if (!std::is_sorted(begin, end, before)) std::sort(begin, end, before);
    for (Query* q = begin + 1; q < end; q++) {
      if (q->limit == (q - 1)->limit) {
        return Invalid("sequence " + Str(i) + " has two rows at position " + Str(q->limit - 1));
      }
    }
    sequence.limit = (end - 1)->limit;
  }
  return Status::Ok();
}

Status AttentionPlan::PlaceRows(std::span<const SpanTable* const> tables,
                                std::span<const BatchRow> rows) {
  places_.resize(rows.size());
  for (uint32_t i = 0; i < sequences_.size(); i++) {
    SequenceRows& sequence = sequences_[i];
    if (sequence.num == 0) continue;
    if (tables[i] == nullptr) return Invalid("sequence " + Str(i) + " has no table");
    sequence.table = tables[i];
    if (Status s = ValidateSpanTable(*tables[i], shape_, sequence.limit); !s.ok()) {
      return Status(s.code(), s.message() + " (sequence " + Str(i) + ")");
    }
    for (uint32_t k = 0; k < sequence.num; k++) {
      const Query& query = sorted_[sequence.first + k];
      const uint32_t position = query.limit - 1;
      const Piece piece =
          SpanCursor(*tables[i], shape_.tokens_per_block, position).Next(query.limit);
      places_[query.row] = {*piece.block, piece.first_row, position, piece.shift,
                            rows[query.row].write};
    }
  }
  return Status::Ok();
}

// Whether both read the whole chunk, from the same rows of the same blocks.
bool AttentionPlan::SameChunk(const SequenceRows& a, const SequenceRows& b, uint32_t chunk) const {
  const uint32_t begin = chunk * kChunkTokens, end = begin + kChunkTokens;
  if (a.limit < end || b.limit < end) return false;
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

// Plans chunks [chunk, ...) of the sequences in [begin, end), which share all chunks before.
void AttentionPlan::GroupFrom(uint32_t* begin, uint32_t* end, uint32_t chunk) {
  const auto done = [&](uint32_t i) { return sequences_[i].limit <= chunk * kChunkTokens; };
  // A sequence that fills a tile gains nothing from others, and would have to keep its partial
  // results behind the shared chunks.
  const auto may_share = [&](uint32_t i) {
    return cascade_ && sequences_[i].num < max_tile_queries_;
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
      AddSegment({leader, 1}, chunk, (first.limit + kChunkTokens - 1) / kChunkTokens);
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
  const auto before = [](const Query& a, const Query& b) { return a.limit < b.limit; };
  for (uint32_t i : members) {
    const Query* rows = &sorted_[sequences_[i].first];
    const Query* rows_end = rows + sequences_[i].num;
    queries_.insert(queries_.end(), std::upper_bound(rows, rows_end, Query{0, begin}, before),
                    rows_end);
  }
  if (members.size() > 1) std::sort(queries_.begin() + first_query, queries_.end(), before);

  const uint32_t num_queries = static_cast<uint32_t>(queries_.size()) - first_query;
  const uint32_t num_tiles = (num_queries + max_tile_queries_ - 1) / max_tile_queries_;
  for (uint32_t t = 0; t < num_tiles; t++) {
    QueryTile tile;
    tile.table = sequences_[members[0]].table;
    const uint32_t offset = static_cast<uint32_t>(uint64_t{num_queries} * t / num_tiles);
    const uint32_t next = static_cast<uint32_t>(uint64_t{num_queries} * (t + 1) / num_tiles);
    tile.first_query = first_query + offset;
    tile.num_queries = next - offset;
    const uint32_t limit = queries_[tile.first_query + tile.num_queries - 1].limit;
    tile.chunk_begin = chunk_begin;
    tile.chunk_end = std::min(chunk_end, (limit + kChunkTokens - 1) / kChunkTokens);
    tile.cost = (kReadCost + tile.num_queries * heads_per_kv_) *
                (std::min(limit, chunk_end * kChunkTokens) - begin);
    whole_tiles_.push_back(tile);
  }
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
    const QueryTile& tile = tiles_[t];
    for (uint32_t i = 0; i < tile.num_queries; i++) {
      const Query& query = queries_[tile.first_query + i];
      if (query.limit <= tile.chunk_begin * kChunkTokens) continue;
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
    for (uint32_t i = 0; i < tile.num_queries; i++)
      alone &= num_parts_[queries_[tile.first_query + i].row] == 1;
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
