// AttentionPlan: every row's chunks are planned exactly once and in order, whatever is grouped and
// split; shared chunks are planned once for all.
#include "kernel/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace kvlink::kernel {
namespace {

constexpr KvShape Shape() { return {1, 2, 64, 32, KvType::kF16}; }
constexpr uint32_t kHeads = 6;
constexpr uint32_t kRows = Shape().tokens_per_block;

// Pages are told apart by their address only; nothing reads them.
class PlanTest : public testing::Test {
 protected:
  SpanTable Table(uint32_t num_tokens) {
    SpanTable table;
    for (uint32_t i = 0; i < (num_tokens + kRows - 1) / kRows; i++)
      table.blocks.push_back({NewPage(), nullptr});
    table.spans = {{0, 0, static_cast<uint32_t>(table.blocks.size()) * kRows, 0, 0}};
    return table;
  }
  SpanTable Fork(const SpanTable& base, uint32_t shared_tokens, uint32_t num_tokens) {
    SpanTable table = Table(num_tokens);
    std::copy_n(base.blocks.begin(), shared_tokens / kRows, table.blocks.begin());
    return table;
  }
  AttentionPlan Plan(const std::deque<SpanTable>& tables, const std::vector<BatchRow>& rows,
                     int threads, bool cascade = true, uint32_t window = 0) {
    AttentionPlan plan(Shape(), kHeads, window, 48, cascade);
    std::vector<const SpanTable*> pointers;
    for (const SpanTable& table : tables) pointers.push_back(&table);
    const Status status = batch_.Build(Shape(), pointers, rows);
    EXPECT_TRUE(status.ok()) << status.ToString();
    plan.Build(batch_, threads);
    ExpectEveryChunkOnce(plan, rows);
    return plan;
  }

 private:
  std::byte* NewPage() { return &pages_.emplace_back(); }

  static void ExpectEveryChunkOnce(const AttentionPlan& plan, const std::vector<BatchRow>& rows) {
    for (uint32_t row = 0; row < rows.size(); row++) {
      const uint32_t limit = rows[row].position + 1;
      const uint32_t begin =
          plan.window() == 0 || limit <= plan.window() ? 0 : limit - plan.window();
      uint32_t chunk = begin / kChunkTokens, num_parts = 0;
      for (uint32_t i = plan.first_part(row); i != AttentionPlan::kNoPart;
           i = plan.part(i).next, num_parts++) {
        const QueryTile& tile = plan.tiles()[plan.part(i).tile];
        const Query& query = plan.queries()[tile.first_query + plan.part(i).query_in_tile];
        EXPECT_EQ(query.row, row);
        EXPECT_EQ(query.limit, limit);
        if (num_parts == 0) {
          EXPECT_LE(tile.chunk_begin, chunk);
        } else {
          EXPECT_EQ(tile.chunk_begin, chunk);
          EXPECT_FALSE(tile.folds);
        }
        EXPECT_GT(tile.chunk_end, chunk);
        chunk = tile.chunk_end;
      }
      EXPECT_EQ(num_parts, plan.num_parts(row));
      EXPECT_GT(num_parts, 0u);
      EXPECT_GE(chunk * kChunkTokens, limit);
    }
    EXPECT_EQ(plan.items().size(), plan.tiles().size() * Shape().num_kv_heads);
    for (const QueryTile& tile : plan.tiles()) {
      EXPECT_LE(tile.num_queries, plan.max_tile_queries());
      for (uint32_t i = 1; i < tile.num_queries; i++) {
        EXPECT_LE(plan.queries()[tile.first_query + i - 1].limit,
                  plan.queries()[tile.first_query + i].limit);
      }
    }
  }

  std::deque<std::byte> pages_;
  BatchRows batch_;
};

TEST_F(PlanTest, ChunksOutsideTheWindowAreLeftOut) {
  const std::deque<SpanTable> tables = {Table(4096)};
  const AttentionPlan plan = Plan(tables, {{0, 4095}}, 1, true, 512);
  ASSERT_EQ(plan.tiles().size(), 1u);
  EXPECT_EQ(plan.tiles()[0].chunk_begin * kChunkTokens, 4096u - 512u);
  std::vector<BatchRow> rows;
  for (uint32_t p = 0; p < 4096; p++) rows.push_back({0, p});
  for (const QueryTile& tile : Plan(tables, rows, 1, true, 512).tiles())
    EXPECT_LE(tile.chunk_end - tile.chunk_begin, 4u);
}

TEST_F(PlanTest, SharedChunksAreReadOnceForAllSequences) {
  std::deque<SpanTable> tables = {Table(2048 + 16)};
  std::vector<BatchRow> rows = {{0, 2060}};
  for (uint32_t i = 1; i < 10; i++) {
    tables.push_back(Fork(tables[0], 2048, 2048 + 16));
    rows.push_back({i, 2060});
  }
  const AttentionPlan plan = Plan(tables, rows, 1);
  ASSERT_EQ(plan.tiles().size(), 11u);  // the shared chunks and ten tails
  EXPECT_EQ(plan.tiles()[0].num_queries, 10u);
  EXPECT_EQ(plan.tiles()[0].chunk_end * kChunkTokens, 2048u);
  EXPECT_EQ(Plan(tables, rows, 1, false).tiles().size(), 10u);
}

TEST_F(PlanTest, ChunksThatDivergeInsideAreNotShared) {
  const SpanTable base = Table(1000);
  for (uint32_t shared = kChunkTokens; shared < 2 * kChunkTokens; shared += kRows) {
    SCOPED_TRACE("shared tokens " + std::to_string(shared));
    const AttentionPlan plan = Plan({base, Fork(base, shared, 1000)}, {{0, 999}, {1, 999}}, 1);
    ASSERT_EQ(plan.tiles().size(), 3u);
    EXPECT_EQ(plan.tiles()[0].chunk_end, 1u);
  }
}

TEST_F(PlanTest, OtherShiftsAndDifferencesAreNotShared) {
  const SpanTable base = Table(512);
  SpanTable shifted = base, different = base;
  shifted.spans[0].shift = -32;
  std::byte cells{};
  const std::vector<int8_t> slots(kRows, 0);
  const DifferenceView view = {&cells, slots.data(), 0, 1};
  different.blocks[1].difference = &view;
  const std::vector<BatchRow> rows = {{0, 511}, {1, 511}};
  EXPECT_EQ(Plan({base, base}, rows, 1).tiles().size(), 1u);
  EXPECT_EQ(Plan({base, shifted}, rows, 1).tiles().size(), 2u);
  EXPECT_EQ(Plan({base, different}, rows, 1).tiles().size(), 2u);
}

TEST_F(PlanTest, ASequenceThatFillsATileStaysAlone) {
  std::deque<SpanTable> tables = {Table(1024)};
  tables.push_back(Fork(tables[0], 512, 1024));
  std::vector<BatchRow> rows = {{0, 1000}};
  for (uint32_t p = 900; p < 964; p++) rows.push_back({1, p});
  const AttentionPlan plan = Plan(tables, rows, 1);
  for (const QueryTile& tile : plan.tiles()) EXPECT_EQ(tile.chunk_begin, 0u);
}

TEST_F(PlanTest, OneThreadSplitsNothing) {
  std::deque<SpanTable> tables = {Table(8192)};
  const AttentionPlan one = Plan(tables, {{0, 8191}}, 1);
  EXPECT_EQ(one.tiles().size(), 1u);
  EXPECT_EQ(one.num_records(), 0u);
  EXPECT_GT(Plan(tables, {{0, 8191}}, 4).tiles().size(), 4u);
}

// Threads take the next item when they are done with one; the last one must not end much later than
// the others.
TEST_F(PlanTest, OneLongSequenceKeepsAllThreadsBusy) {
  for (uint32_t tokens : {2048u, 7168u}) {
    for (int threads : {2, 3, 4, 8}) {
      const AttentionPlan plan = Plan({Table(tokens)}, {{0, tokens - 1}}, threads);
      std::vector<double> busy(static_cast<size_t>(threads), 0.0);
      double total = 0;
      for (const WorkItem& item : plan.items()) {
        const double cost = plan.tiles()[item.tile].cost;
        *std::min_element(busy.begin(), busy.end()) += cost;
        total += cost;
      }
      EXPECT_LT(*std::max_element(busy.begin(), busy.end()), 1.15 * total / threads)
          << tokens << " tokens, " << threads << " threads";
    }
  }
}

TEST_F(PlanTest, RandomForestsArePlannedExactlyOnce) {
  for (uint32_t seed = 0; seed < 200; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    const auto up = [&](uint32_t low, uint32_t high) {
      return std::uniform_int_distribution<uint32_t>(low, high)(rng);
    };
    std::deque<SpanTable> tables = {Table(1500)};
    std::vector<BatchRow> rows;
    for (uint32_t i = up(1, 12); i > 0; i--)
      tables.push_back(
          Fork(tables[up(0, static_cast<uint32_t>(tables.size()) - 1)], up(0, 1500), 1500));
    for (uint32_t s = 0; s < tables.size(); s++) {
      std::vector<uint32_t> positions(1500);
      for (uint32_t p = 0; p < 1500; p++) positions[p] = p;
      std::shuffle(positions.begin(), positions.end(), rng);
      for (uint32_t n = up(0, 1) ? up(0, 5) : up(0, 40); n > 0; n--)
        rows.push_back({s, positions[n]});
    }
    std::shuffle(rows.begin(), rows.end(), rng);
    const int threads = static_cast<int>(up(1, 16));
    Plan(tables, rows, threads, up(0, 3) != 0);
    Plan(tables, rows, threads, up(0, 3) != 0, up(1, 1500));
  }
}

}  // namespace
}  // namespace kvlink::kernel
