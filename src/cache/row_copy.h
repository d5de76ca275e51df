// CopyRows: the copy of copy-on-write. Moves whole rows (all layers, all heads) between blocks,
// whether a row lies in the page or in a difference cell. Bits are moved, never computed.
#pragma once

#include <cstdint>

#include "kvlink/kv_shape.h"
#include "kvlink/view.h"

namespace kvlink::cache {

// Rows [first_row, first_row + num_rows) of `from` into the same rows of `to`.
// Requires: where `to` is a difference, it has a cell for each of these rows, or shares `from`'s
// page; between two pages the rows' checkpoints come along.
void CopyRows(const KvShape& shape, const BlockView& from, const BlockView& to, uint32_t first_row,
              uint32_t num_rows);

// One row's K and V to any row of another block.
void CopyRow(const KvShape& shape, const BlockView& from, uint32_t from_row, const BlockView& to,
             uint32_t to_row);

}  // namespace kvlink::cache
