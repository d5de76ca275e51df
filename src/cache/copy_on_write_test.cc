#include "cache/copy_on_write.h"

#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>

#include "base/random.h"
#include "cache/row_copy.h"
#include "pool/page_pool.h"

namespace kvlink::cache {
namespace {

constexpr uint32_t kTokens = 32;
constexpr KvShape kShape{
    .num_layers = 2, .num_kv_heads = 3, .head_dim = 8, .tokens_per_block = kTokens};

TEST(DifferenceCapacity, IsTheMostRowsThatDoNotExceedTheThreshold) {
  EXPECT_EQ(DifferenceCapacity(32, 0.15), 4u);  // 4 / 32 = 0.125; 5 / 32 = 0.156
  EXPECT_EQ(DifferenceCapacity(20, 0.15), 3u);  // exactly
  EXPECT_EQ(DifferenceCapacity(8, 0.15), 1u);
  EXPECT_EQ(DifferenceCapacity(128, 0.15), 19u);
  EXPECT_EQ(DifferenceCapacity(32, 0), 0u);
  EXPECT_EQ(DifferenceCapacity(32, 1), 32u);
  EXPECT_EQ(DifferenceCapacity(128, 1), 127u);  // slots are int8
}

class CopyOnWriteTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kCapacity = 4;

  CopyOnWriteTest() {
    auto pool =
        pool::PagePool::Create({.page_bytes = kShape.page_bytes(),
                                .fragment_bytes = DifferenceView::CellsBytes(kShape, kCapacity),
                                .budget_bytes = 16 * kShape.page_bytes()});
    pool_ = std::move(pool).value();
    graph_.emplace(kTokens, 16);
  }
  ~CopyOnWriteTest() override { graph_.reset(); }

  BlockId Page(uint32_t rows, uint64_t appender = 0) {
    const BlockId id = graph_->Add(pool_->AllocatePage().value(), kNoBlock, appender);
    graph_->SetRows(id, rows);
    return id;
  }
  BlockId DifferenceOver(BlockId base, uint32_t first_row, uint32_t rows, uint64_t appender = 0) {
    const BlockId id = graph_->AddDifference(pool_->AllocateFragment().value(), base, kNoBlock,
                                             appender, first_row, kCapacity);
    graph_->SetRows(id, rows);
    return id;
  }
  CopyOnWrite Decide(BlockId source, uint32_t shared, uint32_t end, bool may_take_over = true) {
    return DecideCopyOnWrite(*graph_, source, shared, end, kTokens, kCapacity, may_take_over);
  }

  std::unique_ptr<pool::PagePool> pool_;
  std::optional<BlockGraph> graph_;
};

TEST_F(CopyOnWriteTest, ATailThatNobodyAppendsToIsTakenOverInPlaceWhenAllItsRowsAreShared) {
  const BlockId tail = Page(10);
  EXPECT_EQ(Decide(tail, 10, kTokens).place, WritePlace::kInPlace);
  EXPECT_EQ(Decide(tail, 9, kTokens).place, WritePlace::kFullCopy);
  EXPECT_EQ(Decide(tail, 10, kTokens, false).place, WritePlace::kFullCopy);
}

TEST_F(CopyOnWriteTest, ATailWithALiveAppenderIsNeverTakenOver) {
  EXPECT_EQ(Decide(Page(10, 77), 10, kTokens).place, WritePlace::kFullCopy);
}

TEST_F(CopyOnWriteTest, FewModifiedRowsMakeADifferenceAndOneMoreAFullCopy) {
  const BlockId tail = Page(20, 77);
  const CopyOnWrite four = Decide(tail, 20, 24);
  EXPECT_EQ(four.place, WritePlace::kDifference);
  EXPECT_EQ(four.base, tail);
  EXPECT_EQ(four.copy_from, 20u);  // nothing is copied
  EXPECT_EQ(four.shared_rows, 20u);
  const CopyOnWrite five = Decide(tail, 20, 25);
  EXPECT_EQ(five.place, WritePlace::kFullCopy);
  EXPECT_EQ(five.copy_from, 0u);
}

TEST_F(CopyOnWriteTest, ADifferenceOverADifferenceGoesOverItsBaseAndCopiesTheCellsItShares) {
  const BlockId base = Page(25, 77);
  const BlockId difference = DifferenceOver(base, 20, 22, 78);
  const CopyOnWrite decided = Decide(difference, 21, 23);
  EXPECT_EQ(decided.place, WritePlace::kDifference);
  EXPECT_EQ(decided.base, base);
  EXPECT_EQ(decided.copy_from, 20u);
  EXPECT_EQ(decided.shared_rows, 21u);
  // Rows 20 to 24 would be modified: five, over the threshold.
  EXPECT_EQ(Decide(difference, 21, 25).place, WritePlace::kFullCopy);
  // Before its first modified row it is the base's rows that are shared.
  EXPECT_EQ(Decide(difference, 15, 17).copy_from, 15u);
}

TEST_F(CopyOnWriteTest, ADifferenceIsTakenOverOnlyAsFarAsItsCellsReach) {
  const BlockId difference = DifferenceOver(Page(25, 77), 20, 22);
  EXPECT_EQ(Decide(difference, 22, 24).place, WritePlace::kInPlace);
  EXPECT_EQ(Decide(difference, 22, 25).place, WritePlace::kFullCopy);
}

// Fills each element with a number of its own, through the view.
void Fill(const BlockView& block, uint16_t salt) {
  auto* elements = reinterpret_cast<uint16_t*>(block.page);
  for (size_t i = 0; i < kShape.page_bytes() / 2; ++i) {
    elements[i] = static_cast<uint16_t>(i * 31 + salt);
  }
  if (!block.difference) return;
  auto* cells = reinterpret_cast<uint16_t*>(block.difference->cells);
  const size_t count = DifferenceView::CellsBytes(kShape, block.difference->capacity) / 2;
  for (size_t i = 0; i < count; ++i) cells[i] = static_cast<uint16_t>(i * 17 + salt + 9);
}

// K [head_dim] then V [head_dim] of a row in every (layer, head), read as view.h documents it.
std::vector<uint16_t> RowOf(const BlockView& block, uint32_t row) {
  std::vector<uint16_t> result;
  const auto read = [&](const std::byte* at) {
    uint16_t value;
    std::memcpy(&value, at, 2);
    result.push_back(value);
  };
  for (uint32_t layer = 0; layer < kShape.num_layers; ++layer) {
    for (uint32_t head = 0; head < kShape.num_kv_heads; ++head) {
      const int slot = block.difference ? block.difference->slots[row] : -1;
      for (uint32_t kv = 0; kv < 2; ++kv) {
        for (uint32_t d = 0; d < kShape.head_dim; ++d) {
          if (slot >= 0) {
            read(block.difference->cells + block.difference->HeadOffset(kShape, layer, head) +
                 ((kv * block.difference->capacity + slot) * kShape.head_dim + d) * 2);
          } else if (kv == 0) {
            read(block.page + kShape.TileOffset(layer, head) + (d * kTokens + row) * 2);
          } else {
            read(block.page + kShape.TileOffset(layer, head) + kShape.v_offset() +
                 (row * kShape.head_dim + d) * 2);
          }
        }
      }
    }
  }
  return result;
}

// Every byte of a row, found through KvRowOf.
std::string BytesOf(const KvShape& shape, const BlockView& block, uint32_t row) {
  std::string bytes;
  const auto add = [&](const std::byte* at, size_t n) {
    bytes.append(reinterpret_cast<const char*>(at), n);
  };
  for (uint32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (uint32_t head = 0; head < shape.num_kv_heads; ++head) {
      const auto at = KvRowOf(shape, block, layer, head, row);
      for (uint32_t g = 0; g < shape.head_dim / shape.k_group(); ++g)
        add(at.k + g * at.k_stride, shape.k_group() * shape.element_bytes());
      add(at.v, shape.vector_bytes());
      if (shape.scale_bytes() == 0) continue;
      add(at.k_scale, shape.scale_bytes());
      add(at.v_scale, shape.scale_bytes());
    }
  }
  return bytes;
}

void FillAtRandom(std::initializer_list<std::vector<std::byte>*> all) {
  base::Random random(3);
  for (std::vector<std::byte>* bytes : all) {
    for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random.Below(256));
  }
}

TEST(CopyRows, MovesExactlyTheRowsAskedForOfEveryKvType) {
  for (KvType type : kKvTypes) {
    SCOPED_TRACE(KvTypeName(type));
    KvShape shape = kShape;
    shape.type = type;
    constexpr uint32_t kCells = 5;
    std::vector<std::byte> pages[2], cells(DifferenceView::CellsBytes(shape, kCells));
    for (auto& page : pages) page.resize(shape.page_bytes());
    std::vector<int8_t> slots(kTokens, -1);
    for (uint32_t i = 0; i < kCells; ++i) slots[20 + i] = static_cast<int8_t>(kCells - 1 - i);
    const DifferenceView difference = {cells.data(), slots.data(), 0, kCells};
    const BlockView from = {pages[0].data(), nullptr}, to = {pages[1].data(), nullptr},
                    over = {pages[1].data(), &difference};
    const struct {
      const BlockView &from, &to;
      uint32_t first, count;
    } cases[] = {{from, to, 3, 20}, {from, over, 20, 5}, {over, from, 18, 7}};
    for (const auto& c : cases) {
      FillAtRandom({&pages[0], &pages[1], &cells});
      std::vector<std::string> source, before;
      size_t row_bytes = 0;
      for (uint32_t row = 0; row < kTokens; ++row) {
        source.push_back(BytesOf(shape, c.from, row));
        before.push_back(BytesOf(shape, c.to, row));
        row_bytes += before.back().size();
      }
      EXPECT_LE(row_bytes, shape.page_bytes());
      EXPECT_EQ(row_bytes, shape.num_layers * shape.num_kv_heads * 2 * kTokens * shape.row_bytes());
      CopyRows(shape, c.from, c.to, c.first, c.count);
      for (uint32_t row = 0; row < kTokens; ++row) {
        const bool copied = row >= c.first && row < c.first + c.count;
        EXPECT_EQ(BytesOf(shape, c.to, row), copied ? source[row] : before[row]) << "row " << row;
        EXPECT_EQ(BytesOf(shape, c.from, row), source[row]) << "row " << row << " of the source";
      }
    }
  }
}

TEST(CopyRow, MovesOneRowToAnyPlaceOfEveryKvType) {
  for (KvType type : kKvTypes) {
    SCOPED_TRACE(KvTypeName(type));
    KvShape shape = kShape;
    shape.type = type;
    std::vector<std::byte> pages[2], cells(DifferenceView::CellsBytes(shape, 2));
    for (auto& page : pages) page.resize(shape.page_bytes());
    FillAtRandom({&pages[0], &pages[1], &cells});
    std::vector<int8_t> slots(kTokens, -1);
    slots[9] = 1;
    const DifferenceView difference = {cells.data(), slots.data(), 0, 2};
    const BlockView from = {pages[0].data(), &difference}, to = {pages[1].data(), nullptr};
    for (const auto& [source, target] : {std::pair(9u, 3u), {4u, 31u}, {31u, 0u}}) {
      std::vector<std::string> before;
      for (uint32_t row = 0; row < kTokens; ++row) before.push_back(BytesOf(shape, to, row));
      const std::string moved = BytesOf(shape, from, source);
      ASSERT_NE(moved, before[target]);
      CopyRow(shape, from, source, to, target);
      for (uint32_t row = 0; row < kTokens; ++row) {
        EXPECT_EQ(BytesOf(shape, to, row), row == target ? moved : before[row]) << "row " << row;
      }
      EXPECT_EQ(BytesOf(shape, from, source), moved);
    }
  }
}

TEST_F(CopyOnWriteTest, CopyMovesExactlyTheRowsAskedForBetweenPagesAndCells) {
  const BlockId page = Page(kTokens), other = Page(kTokens), base = Page(kTokens);
  const BlockId difference = DifferenceOver(base, 20, 24);
  const BlockId sibling = DifferenceOver(base, 18, 22);
  const struct {
    BlockId from, to;
    uint32_t first, count;
  } cases[] = {{page, other, 3, 20},          // page to page
               {difference, other, 18, 8},    // composed: rows of the base and cells
               {page, difference, 20, 4},     // page to cells
               {difference, sibling, 20, 2},  // cells to cells
               {difference, sibling, 16, 6},  // both read rows 16 and 17 of the base
               {page, page, 0, kTokens},      // nothing to do
               {difference, other, 0, kTokens}};
  for (const auto& c : cases) {
    const BlockView from = graph_->View(c.from), to = graph_->View(c.to);
    Fill(to, 1000);
    Fill(from, 5);
    std::vector<std::vector<uint16_t>> source, before;
    for (uint32_t row = 0; row < kTokens; ++row) {
      source.push_back(RowOf(from, row));
      before.push_back(RowOf(to, row));
    }
    CopyRows(kShape, from, to, c.first, c.count);
    for (uint32_t row = 0; row < kTokens; ++row) {
      const bool copied = row >= c.first && row < c.first + c.count;
      EXPECT_EQ(RowOf(to, row), copied ? source[row] : before[row]) << "row " << row;
      EXPECT_EQ(RowOf(from, row), source[row]) << "row " << row << " of the source";
    }
  }
}

}  // namespace
}  // namespace kvlink::cache
