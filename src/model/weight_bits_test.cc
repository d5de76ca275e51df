// The bits of small models of every type of weights and of every family.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/testing/model_files.h"
#include "model/testing/plain_context.h"
#include "model/testing/subject.h"

namespace kvlink::model {
namespace {

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

}  // namespace
}  // namespace kvlink::model
