#include "model/testing/plain_context.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

namespace kvlink::model {
namespace {

constexpr std::byte kNan{0xff};  // 0xffff is NaN in F16 and BF16

}  // namespace

PlainContext::PlainContext(const KvShape& shape, uint32_t capacity) : shape_(shape) {
  const uint32_t rows = shape.tokens_per_block;
  for (uint32_t i = 0; i * rows < capacity; ++i) table_.blocks.push_back({NewPage(), nullptr});
  table_.spans = {{0, 0, num_blocks() * rows, 0, 0}};
}

std::byte* PlainContext::NewPage() {
  const size_t size = shape_.page_bytes() + kTileAlignment;
  pages_.push_back(std::make_unique<std::byte[]>(size));
  std::memset(pages_.back().get(), static_cast<int>(kNan), size);
  const auto address = reinterpret_cast<uintptr_t>(pages_.back().get());
  return pages_.back().get() + (kTileAlignment - address % kTileAlignment) % kTileAlignment;
}

void PlainContext::ShareBlocks(const PlainContext& other, uint32_t num_blocks) {
  std::copy_n(other.table_.blocks.begin(), num_blocks, table_.blocks.begin());
}

void PlainContext::ShareWithDifference(const PlainContext& other, uint32_t block,
                                       uint32_t first_row) {
  const uint32_t capacity = shape_.tokens_per_block - first_row;
  Difference& difference = differences_.emplace_back();
  difference.cells.assign(DifferenceView::CellsBytes(shape_, capacity) + kTileAlignment, kNan);
  difference.slots.assign(shape_.tokens_per_block, -1);
  for (uint32_t i = 0; i < capacity; ++i) difference.slots[first_row + i] = static_cast<int8_t>(i);
  const auto address = reinterpret_cast<uintptr_t>(difference.cells.data());
  difference.view.cells =
      difference.cells.data() + (kTileAlignment - address % kTileAlignment) % kTileAlignment;
  difference.view.slots = difference.slots.data();
  difference.view.slot_stride = 0;
  difference.view.capacity = capacity;
  table_.blocks[block] = {other.page(block), &difference.view};
}

void PlainContext::CopyBlock(const PlainContext& other, uint32_t block) {
  table_.blocks[block] = {NewPage(), nullptr};
  std::memcpy(page(block), other.page(block), shape_.page_bytes());
}

std::vector<std::vector<float>> RunRows(Runner& runner, std::span<const TestRow> rows,
                                        uint32_t vocab_size) {
  std::vector<TokenId> tokens;
  std::vector<kernel::BatchRow> batch_rows;
  std::vector<const SpanTable*> tables;
  std::vector<uint32_t> outputs;
  for (const TestRow& row : rows) {
    const SpanTable* table = &row.context->table();
    auto found = std::find(tables.begin(), tables.end(), table);
    if (found == tables.end()) found = tables.insert(tables.end(), table);
    if (row.output) outputs.push_back(static_cast<uint32_t>(tokens.size()));
    tokens.push_back(row.token);
    batch_rows.push_back({static_cast<uint32_t>(found - tables.begin()), row.position, row.write});
  }
  auto logits = runner.Run({tokens, batch_rows, tables, outputs});
  if (!logits.ok()) {
    std::cerr << "RunRows: " << logits.status().ToString() << std::endl;
    std::abort();
  }
  std::vector<std::vector<float>> result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    result.emplace_back(*logits + i * vocab_size, *logits + (i + 1) * vocab_size);
  }
  return result;
}

std::vector<std::vector<float>> RunPrompt(Runner& runner, const PlainContext& context,
                                          std::span<const TokenId> tokens, uint32_t begin,
                                          uint32_t chunk, uint32_t num_outputs,
                                          uint32_t vocab_size) {
  std::vector<std::vector<float>> result;
  for (size_t done = 0; done < tokens.size(); done += chunk) {
    std::vector<TestRow> rows;
    for (size_t i = done; i < std::min(done + chunk, tokens.size()); ++i) {
      rows.push_back({&context, tokens[i], begin + static_cast<uint32_t>(i), true,
                      i + num_outputs >= tokens.size()});
    }
    for (auto& logits : RunRows(runner, rows, vocab_size)) result.push_back(std::move(logits));
  }
  return result;
}

}  // namespace kvlink::model
