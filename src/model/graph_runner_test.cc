// The runner on a small model: what it refuses, what it keeps, and graphs of many shapes in turn.
#include "model/graph_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernel/f16.h"
#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"
#include "model/testing/subject.h"

namespace kvlink::model {
namespace {

using testing::HasSubstr;

TEST(ProductPiece, PiecesCoverEveryRowAndPanelOnce) {
  for (const int64_t rows : {1, 31, 128, 255, 256, 500, 512}) {
    for (const uint32_t panels : {1u, 18u, 30u}) {
      const auto slices = static_cast<int>(ProductPiece::RowSlices(rows));
      for (const int num_pieces : {1, 2, slices, slices * 3, slices * 18}) {
        std::vector<int> times(static_cast<size_t>(rows) * panels);
        for (int piece = 0; piece < num_pieces; ++piece) {
          const ProductPiece p(rows, panels, piece, num_pieces);
          for (size_t r = p.row_begin; r < p.row_end; ++r)
            for (size_t panel = p.panel_begin; panel < p.panel_end; ++panel)
              ++times[r * panels + panel];
        }
        EXPECT_THAT(times, testing::Each(1)) << rows << " rows, " << num_pieces << " pieces";
      }
    }
  }
}

class TinyRunner : public testing::Test {
 protected:
  TinyRunner() {
    const std::string path = TestFolder() + "/tiny.gguf";
    EXPECT_TRUE(WriteTinyModel({}, path));
    subject_ = std::make_unique<Subject>(path, 64);
  }
  std::string ErrorOf(const Batch& batch) {
    auto result = subject_->runner().Run(batch);
    return result.ok() ? "" : result.status().message();
  }
  std::unique_ptr<Subject> subject_;
};

TEST_F(TinyRunner, BadBatchesAreRefusedWithTheValue) {
  PlainContext context(subject_->shape(), 96);
  const SpanTable* tables[] = {&context.table()};
  std::vector<TokenId> tokens(65, 1);
  std::vector<kernel::BatchRow> rows(65);
  for (uint32_t i = 0; i < 65; ++i) rows[i].position = i;
  EXPECT_THAT(ErrorOf({tokens, rows, tables, {}}), HasSubstr("65 rows, the most is 64"));
  EXPECT_THAT(ErrorOf({}), HasSubstr("no rows"));
  const std::span<const kernel::BatchRow> two(rows.data(), 2);
  const TokenId beyond[] = {1, 300}, negative[] = {-1, 1}, good[] = {1, 2};
  EXPECT_THAT(ErrorOf({beyond, two, tables, {}}), HasSubstr("token 300 is not between 0 and 299"));
  EXPECT_THAT(ErrorOf({negative, two, tables, {}}), HasSubstr("token -1"));
  EXPECT_THAT(ErrorOf({{good, 1}, two, tables, {}}), HasSubstr("1 tokens for 2 rows"));
  const uint32_t descending[] = {1, 0}, outside[] = {2};
  EXPECT_THAT(ErrorOf({good, two, tables, descending}), HasSubstr("ascending"));
  EXPECT_THAT(ErrorOf({good, two, tables, outside}), HasSubstr("below 2"));
  EXPECT_THAT(ErrorOf({good, two, {}, {}}), HasSubstr("sequence 0 has no span table"));
  const kernel::BatchRow far[] = {{0, 0, true}, {0, 96, true}};
  EXPECT_NE(ErrorOf({good, far, tables, {}}), "") << "a position that no span covers";
  EXPECT_EQ(ErrorOf({good, two, tables, {}}), "") << "a good batch after the bad ones";
}

// What a row's page keeps of the residual stream is what a run of the layers below gives, however
// many rows run together, and whatever graph was there before.
TEST_F(TinyRunner, CheckpointsAreTheResidualStreamAsHalves) {
  KvShape shape = subject_->shape();
  const uint32_t n = subject_->model->info().embedding, layers[] = {1};
  shape.checkpoint_bytes = 2 * n;
  std::vector<TokenId> tokens(60);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(11 * i % 300);
  std::vector<float> stream;
  PlainContext plain(shape, 64);
  RunBand(*subject_, plain, tokens, 0, 1, false, &stream);
  for (const uint32_t chunk : {60u, 64u, 7u, 60u}) {
    PlainContext context(shape, 64);
    const SpanTable* table = &context.table();
    for (uint32_t first = 0; first < 60; first += chunk) {
      const uint32_t count = std::min(chunk, 60 - first);
      std::vector<kernel::BatchRow> rows;
      for (uint32_t i = 0; i < count; ++i) rows.push_back({0, first + i, true});
      const uint32_t output = count - 1;
      const auto run = subject_->runner().Run(
          {std::span(tokens).subspan(first, count), rows, {&table, 1}, {&output, 1}, {}, layers});
      ASSERT_TRUE(run.ok()) << run.status().ToString();
    }
    for (uint32_t p = 0; p < 60; ++p) {
      const std::byte* at =
          context.page(p / 32) + shape.checkpoints_offset() + (p % 32) * shape.checkpoint_bytes;
      for (uint32_t i = 0; i < n; ++i) {
        uint16_t half;
        std::memcpy(&half, at + 2 * i, 2);
        ASSERT_EQ(half, kernel::F32ToF16(stream[p * n + i])) << "row " << p << " chunk " << chunk;
      }
    }
  }
}

TEST_F(TinyRunner, BadLayersAreRefusedWithTheValue) {
  PlainContext context(subject_->shape(), 32);
  const SpanTable* tables[] = {&context.table()};
  const TokenId tokens[] = {1};
  const kernel::BatchRow rows[] = {{0, 0, true}};
  const uint32_t outputs[] = {0};
  std::vector<float> stream(256);
  const auto error = [&](uint32_t first, uint32_t end, float* input, float* output,
                         std::span<const uint32_t> wanted) {
    LayerBatch run;
    run.batch = {tokens, rows, tables, wanted};
    run.first_layer = first;
    run.end_layer = end;
    run.input = input;
    run.output = output;
    return subject_->runner().RunLayers(run).status().message();
  };
  EXPECT_THAT(error(1, 1, stream.data(), nullptr, {}), HasSubstr("layers 1 to 1 of 2"));
  EXPECT_THAT(error(0, 3, nullptr, nullptr, {}), HasSubstr("layers 0 to 3 of 2"));
  EXPECT_THAT(error(1, 2, nullptr, nullptr, {}), HasSubstr("residual stream"));
  EXPECT_THAT(error(0, 1, stream.data(), nullptr, {}), HasSubstr("residual stream"));
  EXPECT_THAT(error(0, 2, nullptr, stream.data(), {}), HasSubstr("nothing follows"));
  EXPECT_THAT(error(0, 1, nullptr, stream.data(), outputs), HasSubstr("give no logits"));
  EXPECT_EQ(error(0, 1, nullptr, stream.data(), {}), "");
  EXPECT_EQ(error(1, 2, stream.data(), nullptr, outputs), "");
}

TEST_F(TinyRunner, ManyShapesInTurnGiveTheSameLogitsAsTheFirstTime) {
  // More shapes than graphs are kept, and more outputs than the buffer was made for.
  std::vector<TokenId> tokens(64);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i % 300);
  PlainContext reference(subject_->shape(), 64);
  const Logits expected = subject_->Prompt(reference, tokens, 0, 1, 64, 64);
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t rows = 1; rows <= 64; ++rows) {
      PlainContext context(subject_->shape(), 64);
      const uint32_t outputs = rows % 3 == 0 ? rows : 1;
      const Logits logits = subject_->Prompt(context, {tokens.data(), rows}, 0, 1, 64, outputs);
      EXPECT_TRUE(BitEqual(logits, {expected.begin() + rows - outputs, expected.begin() + rows}))
          << rows;
    }
  }
}

TEST_F(TinyRunner, ThreadsAndRowsOutOfRangeAreRefused) {
  EXPECT_EQ(subject_->model->NewRunner(0, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(subject_->model->NewRunner(100000, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(subject_->model->NewRunner(1, 0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlink::model
