#include "cache/row_copy.h"

#include <cstring>

#include "base/check.h"

namespace kvlink::cache {
namespace {

// Where one row's K and V of one (layer, head) lie: K element d at k + d * k_stride, V contiguous.
struct RowPlace {
  std::byte* k;
  size_t k_stride;
  std::byte* v;
};

RowPlace PlaceOf(const KvShape& shape, const BlockView& block, uint32_t layer, uint32_t head,
                 uint32_t row) {
  const DifferenceView* difference = block.difference;
  const int slot = difference ? difference->slots[layer * difference->slot_stride + row] : -1;
  if (slot < 0) {
    std::byte* tile = block.page + shape.TileOffset(layer, head);
    return {tile + row * shape.element_bytes(), shape.tokens_per_block * shape.element_bytes(),
            tile + shape.v_offset() + row * shape.row_bytes()};
  }
  std::byte* cells = difference->cells + difference->HeadOffset(shape, layer, head);
  const size_t k_bytes = difference->capacity * shape.row_bytes();
  return {cells + static_cast<size_t>(slot) * shape.row_bytes(), shape.element_bytes(),
          cells + k_bytes + static_cast<size_t>(slot) * shape.row_bytes()};
}

// Between two pages rows are runs: of each dimension in K, of the whole range in V.
void CopyPageRows(const KvShape& shape, const std::byte* from, std::byte* to, uint32_t first_row,
                  uint32_t num_rows) {
  const size_t element = shape.element_bytes();
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      size_t k = shape.TileOffset(layer, head) + first_row * element;
      const size_t v =
          shape.TileOffset(layer, head) + shape.v_offset() + first_row * shape.row_bytes();
      for (uint32_t d = 0; d < shape.head_dim; ++d, k += shape.tokens_per_block * element) {
        std::memcpy(to + k, from + k, num_rows * element);
      }
      std::memcpy(to + v, from + v, num_rows * shape.row_bytes());
    }
  }
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
  const size_t element = shape.element_bytes();
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      for (uint32_t row = first_row; row < first_row + num_rows; ++row) {
        const RowPlace source = PlaceOf(shape, from, layer, head, row);
        const RowPlace target = PlaceOf(shape, to, layer, head, row);
        if (source.k == target.k) continue;  // both read the base's row
        for (uint32_t d = 0; d < shape.head_dim; ++d) {
          std::memcpy(target.k + d * target.k_stride, source.k + d * source.k_stride, element);
        }
        std::memcpy(target.v, source.v, shape.row_bytes());
      }
    }
  }
}

}  // namespace kvlink::cache
