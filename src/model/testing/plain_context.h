// PlainContext: the context of one sequence in pages of its own, without a cache. For tests of
// graphs and kernels.
//
// Pages start out as NaN, so that a read of a row that nobody wrote shows in the logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kvlink/kv_shape.h"
#include "kvlink/view.h"
#include "model/model.h"

namespace kvlink::model {

class PlainContext {
 public:
  PlainContext(const KvShape& shape, uint32_t capacity);

  const SpanTable& table() const { return table_; }
  uint32_t num_blocks() const { return static_cast<uint32_t>(table_.blocks.size()); }
  std::byte* page(uint32_t block) const { return table_.blocks[block].page; }

  // Blocks [0, num_blocks) are `other`'s pages from now on: shared, not copied.
  void ShareBlocks(const PlainContext& other, uint32_t num_blocks);
  // Block `block` is `other`'s page with a difference block over it; rows [first_row, end) of all
  // layers have cells.
  void ShareWithDifference(const PlainContext& other, uint32_t block, uint32_t first_row);
  // Block `block` is a private copy of `other`'s.
  void CopyBlock(const PlainContext& other, uint32_t block);

 private:
  std::byte* NewPage();

  struct Difference {
    std::vector<std::byte> cells;
    std::vector<int8_t> slots;
    DifferenceView view;
  };
  KvShape shape_;
  SpanTable table_;
  std::vector<std::unique_ptr<std::byte[]>> pages_;
  std::deque<Difference> differences_;
};

// One row of a batch for RunRows.
struct TestRow {
  const PlainContext* context = nullptr;
  TokenId token = 0;
  uint32_t position = 0;
  bool write = true;
  bool output = false;
};

// Runs one batch; returns the logits of the rows with `output`, one vector each. Fails the test on
// an error.
std::vector<std::vector<float>> RunRows(Runner& runner, std::span<const TestRow> rows,
                                        uint32_t vocab_size);

// Runs `tokens` from position `begin` in batches of `chunk` rows. Returns the logits of the last
// `num_outputs` tokens.
std::vector<std::vector<float>> RunPrompt(Runner& runner, const PlainContext& context,
                                          std::span<const TokenId> tokens, uint32_t begin,
                                          uint32_t chunk, uint32_t num_outputs,
                                          uint32_t vocab_size);

}  // namespace kvlink::model
