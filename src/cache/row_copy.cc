#include "cache/row_copy.h"

#include <cstring>

#include "base/check.h"

namespace kvlink::cache {
namespace {

// Between two pages rows are runs: of each group of dimensions in K, of the whole range in V and in
// scales.
void CopyPageRows(const KvShape& shape, const std::byte* from, std::byte* to, uint32_t first_row,
                  uint32_t num_rows) {
  const size_t group_bytes = shape.k_group() * shape.element_bytes();
  const auto copy = [&](size_t offset, size_t row_bytes) {
    offset += first_row * row_bytes;
    std::memcpy(to + offset, from + offset, num_rows * row_bytes);
  };
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      const size_t tile = shape.TileOffset(layer, head);
      for (size_t group = 0; group < shape.head_dim / shape.k_group(); ++group)
        copy(tile + group * shape.tokens_per_block * group_bytes, group_bytes);
      copy(tile + shape.k_scales_offset(), shape.scale_bytes());
      copy(tile + shape.v_offset(), shape.vector_bytes());
      copy(tile + shape.v_scales_offset(), shape.scale_bytes());
    }
  }
  copy(shape.checkpoints_offset(), shape.checkpoint_bytes);
}

void CopyRow(const KvShape& shape, const KvRowView<std::byte>& from,
             const KvRowView<std::byte>& to) {
  const size_t group_bytes = shape.k_group() * shape.element_bytes();
  for (size_t group = 0; group < shape.head_dim / shape.k_group(); ++group)
    std::memcpy(to.k + group * to.k_stride, from.k + group * from.k_stride, group_bytes);
  std::memcpy(to.v, from.v, shape.vector_bytes());
  if (shape.scale_bytes() == 0) return;
  std::memcpy(to.k_scale, from.k_scale, shape.scale_bytes());
  std::memcpy(to.v_scale, from.v_scale, shape.scale_bytes());
}

}  // namespace

void CopyRows(const KvShape& shape, const BlockView& from, const BlockView& to, uint32_t first_row,
              uint32_t num_rows) {
  KVLINK_CHECK(first_row + num_rows <= shape.tokens_per_block)
      << "rows " << first_row << " to " << first_row + num_rows;
  if (!from.difference && !to.difference) {
    if (from.page != to.page) CopyPageRows(shape, from.page, to.page, first_row, num_rows);
    return;
  }
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      for (uint32_t row = first_row; row < first_row + num_rows; ++row) {
        const auto source = KvRowOf(shape, from, layer, head, row);
        const auto target = KvRowOf(shape, to, layer, head, row);
        if (source.k != target.k) CopyRow(shape, source, target);  // else both read the base's row
      }
    }
  }
}

void CopyRow(const KvShape& shape, const BlockView& from, uint32_t from_row, const BlockView& to,
             uint32_t to_row) {
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      CopyRow(shape, KvRowOf(shape, from, layer, head, from_row),
              KvRowOf(shape, to, layer, head, to_row));
    }
  }
}

}  // namespace kvlink::cache
