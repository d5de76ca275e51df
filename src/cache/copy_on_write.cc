#include "cache/copy_on_write.h"

#include <algorithm>

#include "base/check.h"

namespace kvlink::cache {

uint32_t DifferenceCapacity(uint32_t tokens_per_block, double cow_copy_threshold) {
  constexpr double kRounding = 1e-9;  // 0.15 * 20 is 3 rows, not 2.9999...
  constexpr uint32_t kMaxSlot = 127;  // slots are int8
  const double rows = cow_copy_threshold * tokens_per_block + kRounding;
  return std::min({static_cast<uint32_t>(rows), tokens_per_block, kMaxSlot});
}

uint32_t EndRow(const Block& block, uint32_t tokens_per_block) {
  if (!block.difference) return tokens_per_block;
  return std::min(tokens_per_block, block.difference->first_row + block.difference->view.capacity);
}

CopyOnWrite DecideCopyOnWrite(const BlockGraph& graph, BlockId source, uint32_t shared_rows,
                              uint32_t end_row, uint32_t tokens_per_block,
                              uint32_t difference_capacity, bool may_take_over) {
  const Block& block = graph[source];
  KVLINK_CHECK(shared_rows > 0 && shared_rows <= block.rows && shared_rows < end_row &&
               end_row <= tokens_per_block)
      << "share " << shared_rows << " of " << block.rows << " rows, write to " << end_row;
  if (may_take_over && block.appender == 0 && shared_rows == block.rows &&
      end_row <= EndRow(block, tokens_per_block)) {
    return {WritePlace::kInPlace, kNoBlock, shared_rows, shared_rows};
  }
  // A difference over a difference goes over its base, with the cells that it shares copied.
  const BlockId base = block.difference ? block.base : source;
  const uint32_t first =
      block.difference ? std::min(block.difference->first_row, shared_rows) : shared_rows;
  if (end_row - first <= difference_capacity) {
    return {WritePlace::kDifference, base, first, shared_rows};
  }
  return {WritePlace::kFullCopy, kNoBlock, 0, shared_rows};
}

}  // namespace kvlink::cache
