#include "kernel/batch_rows.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kernel/span_cursor.h"

namespace kvlink::kernel {
namespace {

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, "attention: " + std::move(message));
}

std::string Str(uint64_t value) { return std::to_string(value); }

// `where`() names the block: a message is made only for an error.
Status ValidateDifference(const DifferenceView& difference, const KvShape& shape,
                          const auto& where) {
  const uint32_t rows = shape.tokens_per_block;
  if (difference.cells == nullptr || difference.slots == nullptr)
    return Invalid(where() + ": its difference block has no cells or no slots");
  if (difference.slot_stride != 0 && difference.slot_stride < rows) {
    return Invalid(where() + ": slot stride " + Str(difference.slot_stride) +
                   " of its difference block is below the " + Str(rows) + " rows of a block");
  }
  const uint32_t maps = difference.slot_stride == 0 ? 1 : shape.num_layers;
  const int capacity = static_cast<int>(std::min<uint32_t>(difference.capacity, 128));
  for (uint32_t layer = 0; layer < maps; layer++) {
    const int8_t* slots = difference.slots + size_t{layer} * difference.slot_stride;
    const int8_t largest = *std::max_element(slots, slots + rows);
    if (largest >= capacity) {
      return Invalid(where() + ": slot " + std::to_string(largest) + " of layer " + Str(layer) +
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
    Status s =
        ValidateDifference(*block.difference, shape, [&] { return where() + ", block " + Str(b); });
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

Status BatchRows::Build(const KvShape& shape, std::span<const SpanTable* const> tables,
                        std::span<const BatchRow> rows) {
  if (Status s = Sort(tables, rows); !s.ok()) return s;
  return Place(shape, tables, rows);
}

// A counting sort by table, then a sort of each table's rows unless they are in order already.
Status BatchRows::Sort(std::span<const SpanTable* const> tables, std::span<const BatchRow> rows) {
  begin_.assign(tables.size() + 1, 0);
  for (size_t r = 0; r < rows.size(); r++) {
    const BatchRow& row = rows[r];
    if (row.sequence >= tables.size()) {
      return Invalid("row " + Str(r) + " is of sequence " + Str(row.sequence) + " of " +
                     Str(tables.size()));
    }
    if (row.position >= 0x7fffffffu)
      return Invalid("row " + Str(r) + " is at position " + Str(row.position));
    begin_[row.sequence + 1]++;
  }
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  end_.assign(begin_.begin(), begin_.end() - 1);
  sorted_.resize(rows.size());
  for (uint32_t r = 0; r < rows.size(); r++)
    sorted_[end_[rows[r].sequence]++] = {r, rows[r].position + 1};
  for (uint32_t i = 0; i < tables.size(); i++) {
    const std::span<Query> queries(sorted_.data() + begin_[i], sorted_.data() + end_[i]);
    const auto before = [](const Query& a, const Query& b) { return a.limit < b.limit; };
    if (!std::is_sorted(queries.begin(), queries.end(), before))
      std::sort(queries.begin(), queries.end(), before);
    for (size_t q = 1; q < queries.size(); q++) {
      if (queries[q].limit == queries[q - 1].limit) {
        return Invalid("sequence " + Str(i) + " has two rows at position " +
                       Str(queries[q].limit - 1));
      }
    }
  }
  return Status::Ok();
}

Status BatchRows::Place(const KvShape& shape, std::span<const SpanTable* const> tables,
                        std::span<const BatchRow> rows) {
  sequences_.clear();
  places_.resize(rows.size());
  for (uint32_t i = 0; i < tables.size(); i++) {
    if (begin_[i] == end_[i]) continue;
    if (tables[i] == nullptr) return Invalid("sequence " + Str(i) + " has no table");
    sequences_.push_back({tables[i], {sorted_.data() + begin_[i], sorted_.data() + end_[i]}});
    const SequenceRows& sequence = sequences_.back();
    if (Status s = ValidateSpanTable(*tables[i], shape, sequence.limit()); !s.ok())
      return Status(s.code(), s.message() + " (sequence " + Str(i) + ")");
    for (const Query& query : sequence.queries) {
      const uint32_t position = query.limit - 1;
      const Piece piece =
          SpanCursor(*tables[i], shape.tokens_per_block, position).Next(query.limit);
      places_[query.row] = {*piece.block, piece.first_row, position, piece.shift,
                            rows[query.row].write};
    }
  }
  return Status::Ok();
}

}  // namespace kvlink::kernel
