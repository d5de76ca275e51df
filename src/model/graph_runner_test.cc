// Bits: a row's logits are the same whatever else is computed with it, and wherever its context
// lies.
#include "model/graph_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "kernel/f16.h"
#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"
#include "model/testing/prompts.h"

namespace kvlink::model {
namespace {

using Logits = std::vector<std::vector<float>>;
using testing::HasSubstr;

constexpr uint32_t kMaxRows = 512;

bool BitEqual(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return false;
    }
    for (const float logit : a[i]) {
      if (!std::isfinite(logit)) return false;
    }
  }
  return !a.empty();
}

std::unique_ptr<Model> LoadOrDie(const std::string& path, KvType kv_type) {
  LoadOptions options;
  options.path = path;
  options.kv_type = kv_type;
  auto model = Model::Load(options);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return model.ok() ? *std::move(model) : nullptr;
}

// A model with a runner for one and one for two threads.
struct Subject {
  explicit Subject(const std::string& path, uint32_t max_rows = kMaxRows,
                   KvType kv_type = KvType::kF16)
      : model(LoadOrDie(path, kv_type)) {
    if (model == nullptr) return;
    for (const int threads : {1, 2}) {
      auto runner = model->NewRunner(threads, max_rows);
      EXPECT_TRUE(runner.ok()) << runner.status().ToString();
      runners.push_back(*std::move(runner));
    }
  }
  const KvShape& shape() const { return model->kv_shape(); }
  uint32_t vocab() const { return model->info().vocab_size; }
  // One thread unless a test is about threads: two wait for each other at every node when the
  // machine is busy.
  Runner& runner(int threads = 1) { return *runners[static_cast<size_t>(threads - 1)]; }

  std::vector<TokenId> Tokens(uint64_t seed, uint32_t count) const {
    std::vector<TokenId> tokens = model->tokenizer().Encode(MakePrompt(seed, count), true, false);
    EXPECT_GE(tokens.size(), count);
    tokens.resize(count);
    return tokens;
  }
  Logits Prompt(const PlainContext& context, std::span<const TokenId> tokens, uint32_t begin = 0,
                int threads = 1, uint32_t chunk = kMaxRows, uint32_t num_outputs = 1) {
    return RunPrompt(runner(threads), context, tokens, begin, chunk, num_outputs, vocab());
  }

  std::unique_ptr<Model> model;
  std::vector<std::unique_ptr<Runner>> runners;
};

// The default model as it is ("q4_1") and expanded to F32, with KV of each type, loaded once.
struct ModelCase {
  std::string weights;
  KvType kv_type = KvType::kF16;
  std::string name() const { return weights + "_" + KvTypeName(kv_type); }
};

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

class DefaultModel : public testing::TestWithParam<ModelCase> {
 protected:
  Subject& subject() {
    static std::map<std::string, std::unique_ptr<Subject>> subjects;
    auto& entry = subjects[GetParam().name()];
    if (entry == nullptr) {
      const std::string path =
          GetParam().weights == "f32" ? ExpandedModelPath() : DefaultModelPath();
      EXPECT_NE(path, "") << "no default model: run the set-up, or set KVLINK_TEST_MODEL";
      entry = std::make_unique<Subject>(path, kMaxRows, GetParam().kv_type);
    }
    return *entry;
  }
};
INSTANTIATE_TEST_SUITE_P(Weights, DefaultModel,
                         testing::Values(ModelCase{"q4_1", KvType::kF16},
                                         ModelCase{"q4_1", KvType::kBF16},
                                         ModelCase{"q4_1", KvType::kQ8_0},
                                         ModelCase{"f32", KvType::kF16}),
                         [](const auto& test) { return test.param.name(); });

TEST_P(DefaultModel, ChunkSizeDoesNotChangeBits) {
  Subject& s = subject();
  // F32 weights are read whole for every batch: fewer single rows for them.
  const auto tokens = s.Tokens(1, GetParam().weights == "f32" ? 150 : 530);
  PlainContext whole(s.shape(), 544);
  const Logits expected = s.Prompt(whole, tokens, 0, 1, 512, 5);
  for (const uint32_t chunk : {1u, 7u, 64u}) {
    PlainContext context(s.shape(), 544);
    EXPECT_TRUE(BitEqual(s.Prompt(context, tokens, 0, 1, chunk, 5), expected))
        << "chunks of " << chunk;
  }
}

TEST_P(DefaultModel, ThreadsDoNotChangeBits) {
  Subject& s = subject();
  const auto tokens = s.Tokens(2, 40);
  PlainContext one(s.shape(), 256), two(s.shape(), 256);
  EXPECT_TRUE(BitEqual(s.Prompt(one, tokens, 0, 1, 64, 3), s.Prompt(two, tokens, 0, 2, 64, 3)));
  const TestRow in_one[] = {{&one, 17, 40, true, true}}, in_two[] = {{&two, 17, 40, true, true}};
  EXPECT_TRUE(
      BitEqual(RunRows(s.runner(1), in_one, s.vocab()), RunRows(s.runner(2), in_two, s.vocab())));
}

TEST_P(DefaultModel, BatchOfOneToSixteenDoesNotChangeBits) {
  Subject& s = subject();
  constexpr uint32_t kSequences = 16;
  std::deque<PlainContext> contexts;
  std::vector<TestRow> rows;
  Logits alone;
  for (uint32_t i = 0; i < kSequences; ++i) contexts.emplace_back(s.shape(), 128);
  for (uint32_t i = 0; i < kSequences; ++i) {
    const auto tokens = s.Tokens(100 + i, 10 + 4 * i);
    s.Prompt(contexts[i], tokens);
    rows.push_back({&contexts[i], tokens[3], static_cast<uint32_t>(tokens.size()), true, true});
    alone.push_back(RunRows(s.runner(), {&rows.back(), 1}, s.vocab())[0]);
  }
  for (uint32_t batch = 1; batch <= kSequences; ++batch) {
    const Logits together = RunRows(s.runner(), {rows.data(), batch}, s.vocab());
    EXPECT_TRUE(BitEqual(together, {alone.begin(), alone.begin() + batch})) << "batch of " << batch;
  }
}

TEST_P(DefaultModel, DecodingBesideAPrefillDoesNotChangeBits) {
  Subject& s = subject();
  const auto decoding = s.Tokens(3, 60), arriving = s.Tokens(4, 100);
  PlainContext a(s.shape(), 128), alone(s.shape(), 128), beside(s.shape(), 128);
  s.Prompt(a, decoding);
  const Logits expected_prompt = s.Prompt(alone, arriving);
  std::vector<TestRow> rows = {{&a, 5, 60, true, true}};
  const Logits expected_decode = RunRows(s.runner(), rows, s.vocab());
  for (uint32_t i = 0; i < arriving.size(); ++i)
    rows.push_back({&beside, arriving[i], i, true, i == 99});
  const Logits both = RunRows(s.runner(), rows, s.vocab());
  EXPECT_TRUE(BitEqual({both[0]}, expected_decode));
  EXPECT_TRUE(BitEqual({both[1]}, expected_prompt));
}

TEST_P(DefaultModel, WarmEqualsColdOnSharedPagesAndOnCopies) {
  Subject& s = subject();
  const auto prefix = s.Tokens(5, 96);
  const auto tail = s.Tokens(6, 30);
  PlainContext donor(s.shape(), 128), cold(s.shape(), 160), shared(s.shape(), 160),
      copied(s.shape(), 160);
  s.Prompt(donor, prefix);
  s.Prompt(cold, prefix);
  shared.ShareBlocks(donor, 3);
  for (uint32_t block = 0; block < 3; ++block) copied.CopyBlock(donor, block);
  const Logits expected = s.Prompt(cold, tail, 96);
  EXPECT_TRUE(BitEqual(s.Prompt(shared, tail, 96), expected));
  EXPECT_TRUE(BitEqual(s.Prompt(copied, tail, 96), expected));
}

TEST_P(DefaultModel, TwoSequencesOnOnePrefixInOneBatchEqualEachAlone) {
  Subject& s = subject();
  const auto prefix = s.Tokens(7, 64);
  PlainContext donor(s.shape(), 64), a(s.shape(), 128), b(s.shape(), 128), alone(s.shape(), 128);
  s.Prompt(donor, prefix);
  a.ShareBlocks(donor, 2);
  b.ShareBlocks(donor, 2);
  s.Prompt(alone, prefix);
  const TestRow together[] = {{&a, 11, 64, true, true}, {&b, 12, 64, true, true}};
  const Logits both = RunRows(s.runner(), together, s.vocab());
  const TestRow first[] = {{&alone, 11, 64, true, true}}, second[] = {{&alone, 12, 64, true, true}};
  EXPECT_TRUE(BitEqual({both[0]}, RunRows(s.runner(), first, s.vocab())));
  EXPECT_TRUE(BitEqual({both[1]}, RunRows(s.runner(), second, s.vocab())));
}

TEST_P(DefaultModel, DifferenceBlockEqualsFullCopy) {
  Subject& s = subject();
  const auto prefix = s.Tokens(8, 64);
  PlainContext donor(s.shape(), 64), difference(s.shape(), 96), copy(s.shape(), 96);
  s.Prompt(donor, prefix);
  // Both keep rows 0 to 49 and write their own rows from 50 on.
  difference.ShareBlocks(donor, 1);
  difference.ShareWithDifference(donor, 1, 50 - 32);
  copy.CopyBlock(donor, 0);
  copy.CopyBlock(donor, 1);
  const auto tail = s.Tokens(9, 24);
  const Logits expected = s.Prompt(copy, tail, 50, 1, 10, 24);
  EXPECT_TRUE(BitEqual(s.Prompt(difference, tail, 50, 1, 10, 24), expected));
  // The donor still reads its own rows.
  PlainContext untouched(s.shape(), 96);
  s.Prompt(untouched, prefix);
  const TestRow in_donor[] = {{&donor, 9, 63, false, true}},
                in_untouched[] = {{&untouched, 9, 63, false, true}};
  EXPECT_TRUE(BitEqual(RunRows(s.runner(), in_donor, s.vocab()),
                       RunRows(s.runner(), in_untouched, s.vocab())));
}

TEST_P(DefaultModel, RecomputingSelectedRowsChangesNothing) {
  Subject& s = subject();
  const auto tokens = s.Tokens(10, 120);
  PlainContext context(s.shape(), 128);
  const Logits expected = s.Prompt(context, tokens);
  const std::vector<std::byte> before(context.page(1), context.page(1) + s.shape().page_bytes());
  std::mt19937 random(7);
  std::vector<uint32_t> positions(120);
  std::iota(positions.begin(), positions.end(), 0u);
  std::shuffle(positions.begin(), positions.end(), random);
  positions.resize(30);
  // In any order: all rows of a batch are written before any is read.
  std::vector<TestRow> rows;
  for (const uint32_t p : positions) rows.push_back({&context, tokens[p], p, true, false});
  rows.push_back({&context, tokens[119], 119, true, true});
  EXPECT_TRUE(BitEqual(RunRows(s.runner(), rows, s.vocab()), expected));
  EXPECT_EQ(std::memcmp(before.data(), context.page(1), before.size()), 0);
}

// What runs layers [first, end) of all tokens; `stream` is the residual stream [rows, embedding].
const float* RunBand(Subject& s, const PlainContext& context, std::span<const TokenId> tokens,
                     uint32_t first, uint32_t end, bool writes_next, std::vector<float>* stream) {
  std::vector<kernel::BatchRow> rows;
  for (uint32_t i = 0; i < tokens.size(); ++i) rows.push_back({0, i, true});
  const SpanTable* table = &context.table();
  const uint32_t last = static_cast<uint32_t>(tokens.size()) - 1;
  const bool ends = end == s.shape().num_layers;
  LayerBatch run;
  run.batch = {tokens, rows, {&table, 1}, std::span(&last, ends ? size_t{1} : size_t{0})};
  run.first_layer = first;
  run.end_layer = end;
  const std::vector<float> input = *stream;
  if (first > 0) run.input = input.data();
  stream->assign(tokens.size() * s.model->info().embedding, 0.0f);
  if (!ends) run.output = stream->data();
  run.writes_next = writes_next;
  const auto logits = s.runner().RunLayers(run);
  EXPECT_TRUE(logits.ok()) << logits.status().ToString();
  return logits.ok() ? *logits : nullptr;
}

TEST_P(DefaultModel, LayersInBandsGiveTheBitsOfTheWholeNetwork) {
  Subject& s = subject();
  const auto tokens = s.Tokens(12, 70);
  PlainContext whole(s.shape(), 96), banded(s.shape(), 96);
  const Logits expected = s.Prompt(whole, tokens);
  const uint32_t num_layers = s.shape().num_layers;
  std::vector<float> stream;
  EXPECT_EQ(RunBand(s, banded, tokens, 0, 1, true, &stream), nullptr);
  EXPECT_EQ(RunBand(s, banded, tokens, 1, 8, false, &stream), nullptr);
  const float* logits = RunBand(s, banded, tokens, 8, num_layers, false, &stream);
  ASSERT_NE(logits, nullptr);
  EXPECT_TRUE(BitEqual(Logits{std::vector<float>(logits, logits + s.vocab())}, expected));
  for (const uint32_t block : {0, 1}) {  // those that are full
    EXPECT_EQ(std::memcmp(whole.page(block), banded.page(block), s.shape().page_bytes()), 0);
  }
}

TEST_P(DefaultModel, ReadOnlyRowGivesTheSameLogitsAsTheWrite) {
  Subject& s = subject();
  const auto tokens = s.Tokens(11, 70);
  PlainContext context(s.shape(), 96);
  const Logits expected = s.Prompt(context, tokens);
  const TestRow again[] = {{&context, tokens[69], 69, false, true}};
  EXPECT_TRUE(BitEqual(RunRows(s.runner(), again, s.vocab()), expected));
}

// Weight types whose products ggml computes by different kernels. Rows of 256, as K-quants need;
// all batch sizes from 1 to 20, since some paths start at 2, 4, 8 or 16 rows.
class WeightType : public testing::TestWithParam<ggml_type> {};
INSTANTIATE_TEST_SUITE_P(All, WeightType,
                         testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16,
                                         GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0,
                                         GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K,
                                         GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                         GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                                         GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ2_XXS, GGML_TYPE_TQ2_0,
                                         GGML_TYPE_MXFP4),
                         [](const auto& test) { return std::string(ggml_type_name(test.param)); });

TEST_P(WeightType, RowsAndThreadsDoNotChangeBits) {
  TinyModel tiny;
  tiny.weight_type = GetParam();
  const std::string path = TestFolder() + "/tiny-" + ggml_type_name(GetParam()) + ".gguf";
  ASSERT_TRUE(WriteTinyModel(tiny, path));
  Subject s(path, 64);
  ASSERT_NE(s.model, nullptr);
  std::vector<TokenId> tokens(40);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(7 * i % 300);
  PlainContext reference(s.shape(), 64);
  const Logits expected = s.Prompt(reference, tokens, 0, 1, 1, 40);
  for (uint32_t chunk = 2; chunk <= 20; ++chunk) {
    PlainContext context(s.shape(), 64);
    const int threads = chunk == 4 || chunk == 17 ? 2 : 1;
    EXPECT_TRUE(BitEqual(s.Prompt(context, tokens, 0, threads, chunk, 40), expected))
        << "chunks of " << chunk << ", threads " << threads;
  }
}

// Every family, on weights that are packed and on some that are not. Prompts are longer than the
// windows of 100.
struct FamilyCase {
  std::string family;
  ggml_type type;
};
void PrintTo(const FamilyCase& c, std::ostream* out) {
  *out << c.family << "_" << ggml_type_name(c.type);
}

std::vector<FamilyCase> FamilyCases() {
  std::vector<FamilyCase> cases = {{"qwen3moe", GGML_TYPE_F32}, {"mixtral", GGML_TYPE_Q4_K}};
  for (const char* family :
       {"qwen2", "qwen3", "qwen3moe", "mixtral", "gemma2", "gemma3", "phi3", "granite"}) {
    for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q3_K}) cases.push_back({family, type});
  }
  return cases;
}

class FamilyBits : public testing::TestWithParam<FamilyCase> {
 protected:
  FamilyBits() {
    TinyModel tiny = TinyModelOf(GetParam().family);
    tiny.weight_type = GetParam().type;
    tiny.embedding = tiny.feed_forward = 256;  // rows of 256, as K-quants need
    if (tiny.num_layers > 2) tiny.num_layers = 6;
    tiny.edit_keys = [before = tiny.edit_keys](gguf_context* keys) {
      if (before) before(keys);
      if (gguf_find_key(keys, "qwen3moe.expert_feed_forward_length") >= 0)
        gguf_set_val_u32(keys, "qwen3moe.expert_feed_forward_length", 256);
    };
    const std::string path = TestFolder() + "/bits-" + GetParam().family + "-" +
                             ggml_type_name(GetParam().type) + ".gguf";
    EXPECT_TRUE(WriteTinyModel(tiny, path));
    subject_ = std::make_unique<Subject>(path, 256);
    std::filesystem::remove(path);  // it stays mapped
    for (size_t i = 0; i < kTokens; ++i) tokens_.push_back(static_cast<TokenId>(i * (i + 7) % 300));
    cold_ = std::make_unique<PlainContext>(subject_->shape(), 192);
    expected_ = subject_->Prompt(*cold_, tokens_, 0, 1, 256, 4);
  }
  static constexpr size_t kTokens = 170;
  std::unique_ptr<Subject> subject_;
  std::vector<TokenId> tokens_;
  std::unique_ptr<PlainContext> cold_;
  Logits expected_;  // of the last 4 tokens
};
INSTANTIATE_TEST_SUITE_P(All, FamilyBits, testing::ValuesIn(FamilyCases()), [](const auto& test) {
  return test.param.family + "_" + ggml_type_name(test.param.type);
});

TEST_P(FamilyBits, ChunksAndThreadsDoNotChangeBits) {
  for (const auto& [chunk, threads] : {std::pair{1u, 1}, {7u, 1}, {30u, 2}}) {
    PlainContext context(subject_->shape(), 192);
    EXPECT_TRUE(BitEqual(subject_->Prompt(context, tokens_, 0, threads, chunk, 4), expected_))
        << "chunks of " << chunk << ", threads " << threads;
  }
}

TEST_P(FamilyBits, WarmEqualsColdOnSharedPagesAndOnCopies) {
  PlainContext shared(subject_->shape(), 192), copied(subject_->shape(), 192);
  const uint32_t blocks = 5, done = blocks * subject_->shape().tokens_per_block;
  shared.ShareBlocks(*cold_, blocks);
  for (uint32_t block = 0; block < blocks; ++block) copied.CopyBlock(*cold_, block);
  const std::span<const TokenId> tail = std::span(tokens_).subspan(done);
  EXPECT_TRUE(BitEqual(subject_->Prompt(shared, tail, done, 1, 256, 4), expected_));
  EXPECT_TRUE(BitEqual(subject_->Prompt(copied, tail, done, 1, 256, 4), expected_));
}

TEST_P(FamilyBits, SequencesInOneBatchEqualEachAlone) {
  constexpr uint32_t kSequences = 5;
  std::deque<PlainContext> contexts;
  std::vector<TestRow> rows;
  Logits alone;
  for (uint32_t i = 0; i < kSequences; ++i) {
    // Some on the shared prefix, some on their own, before and past the window.
    contexts.emplace_back(subject_->shape(), 192);
    const uint32_t length = 37 * i + 20;
    if (i >= 3) contexts.back().ShareBlocks(*cold_, 4);
    const uint32_t begin = i >= 3 ? std::min(length, 128u) : 0;
    if (length > begin) {
      subject_->Prompt(contexts.back(), std::span(tokens_).subspan(begin, length - begin), begin);
    }
    rows.push_back({&contexts.back(), tokens_[i], length, true, true});
    alone.push_back(RunRows(subject_->runner(), {&rows.back(), 1}, subject_->vocab())[0]);
  }
  EXPECT_TRUE(BitEqual(RunRows(subject_->runner(), rows, subject_->vocab()), alone));
  EXPECT_TRUE(BitEqual(RunRows(subject_->runner(2), rows, subject_->vocab()), alone));
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
