// Copy-on-write: where a sequence writes that shares the first rows of a block with others.
//
//   shared block   | r0 r1 r2 r3 | x x x x |    the newcomer shares rows 0 to 3, writes from 4 on
//   in place       into the same page: nobody else writes it, and all its valid rows are shared
//   difference     into a fragment that holds these rows only, over the page, which stays shared
//   full copy      into a page of its own, the shared rows copied
//
// Decided once, from the rows that will be written: above `cow_copy_threshold` of the block's cells
// a full copy is cheaper to read than a difference, and holds its memory no longer than itself.
#pragma once

#include <cstdint>

#include "cache/block_graph.h"
#include "kvlink/kv_shape.h"

namespace kvlink::cache {

enum class WritePlace : uint8_t { kInPlace, kDifference, kFullCopy };

struct CopyOnWrite {
  WritePlace place = WritePlace::kFullCopy;
  BlockId base = kNoBlock;  // of a difference
  uint32_t copy_from = 0;   // shared rows [copy_from, shared_rows) are copied
  uint32_t shared_rows = 0;
};

// Rows that a difference block holds: the most that do not exceed the threshold; 0: no differences.
uint32_t DifferenceCapacity(uint32_t tokens_per_block, double cow_copy_threshold);

// The first `shared_rows` rows of block `source` are shared, and rows [shared_rows, end_row) will
// be written. `may_take_over`: the writer may append in place to a block that nobody appends to.
// Requires: 0 < shared_rows <= rows of source, shared_rows < end_row <= tokens per block.
CopyOnWrite DecideCopyOnWrite(const BlockGraph& graph, BlockId source, uint32_t shared_rows,
                              uint32_t end_row, uint32_t tokens_per_block,
                              uint32_t difference_capacity, bool may_take_over);

// One past the last row that has a place in this block.
uint32_t EndRow(const Block& block, uint32_t tokens_per_block);

}  // namespace kvlink::cache
