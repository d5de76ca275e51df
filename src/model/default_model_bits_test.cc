// The bits of the default model: neither what runs beside a row nor where its context lies shows in
// its logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"
#include "model/testing/subject.h"

namespace kvlink::model {
namespace {

// The default model as it is ("q4_1") and expanded to F32, with KV of each type, loaded once.
struct ModelCase {
  std::string weights;
  KvType kv_type = KvType::kF16;
  std::string name() const { return weights + "_" + KvTypeName(kv_type); }
};

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

}  // namespace
}  // namespace kvlink::model
