// Views: what a kernel sees of a sequence's context. Plain pointers into pages that the cache keeps
// alive; no ownership.
//
//   SpanTable   spans  ->  blocks[]  ->  page bytes (+ difference cells)
//
// A sequence's context is a list of spans. Exact reuse has one span with shift 0 that starts at row
// 0; similar reuse may enter a donor's pages at any row and with any shift. For a span shifted by s
// the K rows lie rotated for position p - s, and the kernel rotates the *query* by -s instead of
// touching K: (R(q) x)^T (R(d+s) k) = (R(q-s) x)^T (R(d) k).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvlink/kv_shape.h"

namespace kvlink {

// Difference block: the modified cells (layer, row) over a base page. Cells lie layer-major, then
// KV head, as
//     { K [capacity][head_dim], K scales [capacity], V [capacity][head_dim], V scales [capacity] }
// row-major, in the KV type. slots[layer * slot_stride + row] is the cell that replaces `row`, or
// -1 for the base page's row. slot_stride 0 means one map for all layers.
struct DifferenceView {
  std::byte* cells = nullptr;
  const int8_t* slots = nullptr;
  uint32_t slot_stride = 0;
  uint32_t capacity = 0;  // rows a layer

  static size_t HeadBytes(const KvShape& shape, uint32_t capacity) {
    return 2 * capacity * shape.row_bytes();
  }
  static size_t CellsBytes(const KvShape& shape, uint32_t capacity) {
    return HeadBytes(shape, capacity) * shape.num_kv_heads * shape.num_layers;
  }
  size_t HeadOffset(const KvShape& shape, uint32_t layer, uint32_t kv_head) const {
    return (size_t{layer} * shape.num_kv_heads + kv_head) * HeadBytes(shape, capacity);
  }
};

// One logical block as a kernel reads and writes it. Views are stable until the sequence is
// changed.
struct BlockView {
  std::byte* page = nullptr;
  const DifferenceView* difference = nullptr;  // null: the page alone
  bool operator==(const BlockView&) const = default;
};

// Rows [first_row, first_row + num_rows) of the run of blocks that starts at blocks[first_block],
// at positions [position, position + num_rows). Row r of the run lies in blocks[first_block + r /
// tokens_per_block].
struct Span {
  uint32_t first_block = 0;
  uint32_t first_row = 0;
  uint32_t num_rows = 0;
  uint32_t position = 0;
  int32_t shift = 0;  // K of these rows is rotated for (its position - shift)
};

struct SpanTable {
  std::vector<BlockView> blocks;
  std::vector<Span> spans;  // in order of position, without gaps, from position 0
};

// Where one row's K and V of one (layer, KV head) lie: elements [g * i, g * (i + 1)) of K at
// k + i * k_stride with g = shape.k_group(), V together; scales are null where the type has none.
template <typename Byte>
struct KvRowView {
  Byte* k = nullptr;
  size_t k_stride = 0;
  Byte* k_scale = nullptr;
  Byte* v = nullptr;
  Byte* v_scale = nullptr;

  static KvRowView InTile(const KvShape& shape, Byte* tile, uint32_t row) {
    return At(shape, tile, row, shape.tokens_per_block, shape.k_group() * shape.element_bytes(),
              shape.tokens_per_block);
  }
  // `cells` as of DifferenceView::HeadOffset.
  static KvRowView InCells(const KvShape& shape, Byte* cells, uint32_t capacity, uint32_t cell) {
    return At(shape, cells, cell, capacity, shape.vector_bytes(), 1);
  }

 private:
  // Rows of K start `row_stride` apart, of `num` in all; groups follow each other after `groups`.
  static KvRowView At(const KvShape& shape, Byte* base, uint32_t row, size_t num, size_t row_stride,
                      size_t groups) {
    KvRowView view;
    Byte* v = base + num * shape.row_bytes();
    view.k = base + row * row_stride;
    view.k_stride = groups * shape.k_group() * shape.element_bytes();
    view.v = v + row * shape.vector_bytes();
    if (shape.scale_bytes() > 0) {
      view.k_scale = base + num * shape.vector_bytes() + row * shape.scale_bytes();
      view.v_scale = v + num * shape.vector_bytes() + row * shape.scale_bytes();
    }
    return view;
  }
};

// The row as `block` reads it: in its difference block's cell, where it has one, or in its page.
inline KvRowView<std::byte> KvRowOf(const KvShape& shape, const BlockView& block, uint32_t layer,
                                    uint32_t kv_head, uint32_t row) {
  const DifferenceView* difference = block.difference;
  const int cell =
      difference ? difference->slots[size_t{layer} * difference->slot_stride + row] : -1;
  if (cell < 0) {
    return KvRowView<std::byte>::InTile(shape, block.page + shape.TileOffset(layer, kv_head), row);
  }
  return KvRowView<std::byte>::InCells(
      shape, difference->cells + difference->HeadOffset(shape, layer, kv_head),
      difference->capacity, static_cast<uint32_t>(cell));
}

}  // namespace kvlink
