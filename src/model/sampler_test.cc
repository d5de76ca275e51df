#include "model/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "model/testing/model_files.h"

namespace kvlink::model {
namespace {

using testing::HasSubstr;

constexpr uint32_t kVocab = 300;
constexpr TokenId kEnd = 2;  // <|im_end|> of the tiny model

class SamplerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    LoadOptions options;
    options.path = TestFolder() + "/sampler.gguf";
    ASSERT_TRUE(WriteTinyModel({}, options.path));
    auto model = Model::Load(options);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
  }
  static void TearDownTestSuite() { model_.reset(); }

  static std::unique_ptr<Sampler> Make(const SamplingParams& params) {
    auto sampler = Sampler::Create(*model_, params);
    EXPECT_TRUE(sampler.ok()) << sampler.status().ToString();
    return *std::move(sampler);
  }
  static Status ErrorOf(const SamplingParams& params) {
    return Sampler::Create(*model_, params).status();
  }
  static std::vector<float> RandomLogits(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    std::vector<float> logits(kVocab);
    for (float& logit : logits) logit = normal(random);
    return logits;
  }
  static std::vector<TokenId> Draw(Sampler& sampler, const std::vector<float>& logits, int count) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(sampler.Sample(logits.data()));
    return tokens;
  }
  TokenId TokenOf(char c) {
    return model_->tokenizer().Encode(std::string(1, c), false, false).at(0);
  }

  static inline std::unique_ptr<Model> model_;
};

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

TEST_F(SamplerTest, GreedyTakesTheLowestIdOnATie) {
  std::vector<float> logits(kVocab, -1.0f);
  logits[200] = logits[77] = logits[130] = 5.0f;
  EXPECT_EQ(Make(Greedy())->Sample(logits.data()), 77);
}

TEST_F(SamplerTest, SameSeedAndLogitsGiveTheSameTokens) {
  SamplingParams params;
  params.seed = 42;
  params.top_k = 40;
  params.top_p = 0.95f;
  params.min_p = 0.01f;
  params.temperature = 0.8f;
  const auto logits = RandomLogits(1);
  EXPECT_EQ(Draw(*Make(params), logits, 50), Draw(*Make(params), logits, 50));
  SamplingParams other = params;
  other.seed = 43;
  EXPECT_NE(Draw(*Make(params), logits, 50), Draw(*Make(other), logits, 50));
}

TEST_F(SamplerTest, SeedsThatDifferOnlyInTheUpperHalfDiffer) {
  SamplingParams low, high;
  low.seed = 5;
  high.seed = 5 + (uint64_t{1} << 40);
  const auto logits = RandomLogits(2);
  EXPECT_NE(Draw(*Make(low), logits, 50), Draw(*Make(high), logits, 50));
}

TEST_F(SamplerTest, AllOnesSeedIsASeedLikeAnyOther) {
  SamplingParams params;
  params.seed = 0xffffffffu;
  const auto logits = RandomLogits(3);
  EXPECT_EQ(Draw(*Make(params), logits, 30), Draw(*Make(params), logits, 30));
}

TEST_F(SamplerTest, FrequenciesFollowTheSoftmax) {
  std::vector<float> logits(kVocab, -50.0f);
  logits[10] = std::log(0.7f);
  logits[20] = std::log(0.3f);
  SamplingParams params;
  params.seed = 9;
  int tens = 0;
  auto sampler = Make(params);
  for (int i = 0; i < 4000; ++i) tens += sampler->Sample(logits.data()) == 10 ? 1 : 0;
  EXPECT_NEAR(tens / 4000.0, 0.7, 0.04);
}

TEST_F(SamplerTest, TopKTopPAndMinPCutTheTail) {
  std::vector<float> logits(kVocab, -20.0f);
  logits[1] = 3.0f, logits[4] = 2.9f, logits[5] = 1.0f, logits[6] = 0.9f;
  SamplingParams top_k, top_p, min_p, tiny_p;
  top_k.top_k = 2;
  top_p.top_p = 0.7f;
  min_p.min_p = 0.5f;
  tiny_p.top_p = 0.0f;
  for (const auto& params : {top_k, top_p, min_p}) {
    auto sampler = Make(params);
    for (int i = 0; i < 200; ++i) EXPECT_THAT(sampler->Sample(logits.data()), testing::AnyOf(1, 4));
  }
  EXPECT_EQ(Make(tiny_p)->Sample(logits.data()), 1);
}

TEST_F(SamplerTest, LogitsAreNotChanged) {
  auto logits = RandomLogits(4);
  const auto before = logits;
  SamplingParams params;
  params.logit_bias[3] = 10;
  params.repetition_penalty = 1.3f;
  params.ignore_eos = true;
  Draw(*Make(params), logits, 10);
  EXPECT_EQ(logits, before);
}

TEST_F(SamplerTest, LogitBiasWorksOnGreedyToo) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[5] = 4.0f;
  SamplingParams params = Greedy();
  params.logit_bias[9] = 5.0f;
  EXPECT_EQ(Make(params)->Sample(logits.data()), 9);
  params.logit_bias[9] = -100.0f;
  EXPECT_EQ(Make(params)->Sample(logits.data()), 5);
}

TEST_F(SamplerTest, FrequencyPenaltyCountsGeneratedTokensOnly) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[5] = 2.5f, logits[6] = 1.0f;
  SamplingParams params = Greedy();
  params.frequency_penalty = 1.0f;
  auto sampler = Make(params);
  sampler->Observe(5);  // the prompt does not count
  // 5 at 2.5, 1.5, then 0.5 < 1.0; 6 at 1.0, then 0.0 < 0.5.
  EXPECT_EQ(Draw(*sampler, logits, 4), (std::vector<TokenId>{5, 5, 6, 5}));
}

TEST_F(SamplerTest, PresencePenaltyCountsOnce) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[5] = 2.5f, logits[6] = 1.0f;
  SamplingParams params = Greedy();
  params.presence_penalty = 1.0f;
  EXPECT_EQ(Draw(*Make(params), logits, 4), (std::vector<TokenId>{5, 5, 5, 5}));
}

TEST_F(SamplerTest, RepetitionPenaltyLooksAtThePromptToo) {
  std::vector<float> logits(kVocab, -5.0f);
  logits[5] = 3.0f, logits[6] = 2.0f, logits[7] = -0.5f;
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0f;
  auto sampler = Make(params);
  sampler->Observe(5);
  sampler->Observe(7);
  sampler->Observe(100000);                      // not a token: ignored
  EXPECT_EQ(sampler->Sample(logits.data()), 6);  // 5: 1.5 < 2.0
  EXPECT_EQ(sampler->Sample(logits.data()), 5);  // 6: 1.0 < 1.5
}

TEST_F(SamplerTest, IgnoreEosMasksEveryEndOfGeneration) {
  std::vector<float> logits(kVocab, 0.0f);
  for (uint32_t i = 0; i < kVocab; ++i) {
    if (model_->tokenizer().IsEndOfGeneration(static_cast<TokenId>(i))) logits[i] = 50.0f;
  }
  ASSERT_EQ(logits[kEnd], 50.0f);
  SamplingParams greedy = Greedy(), sampled;
  greedy.ignore_eos = sampled.ignore_eos = true;
  EXPECT_FALSE(model_->tokenizer().IsEndOfGeneration(Make(greedy)->Sample(logits.data())));
  for (const TokenId token : Draw(*Make(sampled), logits, 50))
    EXPECT_FALSE(model_->tokenizer().IsEndOfGeneration(token));
}

TEST_F(SamplerTest, GrammarAllowsOnlyWhatItSays) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    params.grammar = "root ::= \"yes\" | \"no\"";
    for (uint64_t seed = 0; seed < 5; ++seed) {
      params.seed = seed;
      auto sampler = Make(params);
      std::string text;
      TokenId token = -1;
      for (int i = 0; i < 8 && !model_->tokenizer().IsEndOfGeneration(token); ++i) {
        token = sampler->Sample(RandomLogits(100 * seed + static_cast<uint64_t>(i)).data());
        text += model_->tokenizer().Piece(token, false);
      }
      EXPECT_THAT(text, testing::AnyOf("yes", "no"));
      EXPECT_TRUE(model_->tokenizer().IsEndOfGeneration(token));
    }
  }
}

// What a mask does to the distribution: the rest keeps its proportions, and tails are cut among
// what is allowed.
TEST_F(SamplerTest, AGrammarMasksBeforeTheTailIsCut) {
  const TokenId a = TokenOf('a'), b = TokenOf('b'), c = TokenOf('c');
  std::vector<float> logits(kVocab, -20.0f);
  logits[static_cast<size_t>(a)] = std::log(0.6f);
  logits[static_cast<size_t>(b)] = std::log(0.3f);
  logits[static_cast<size_t>(c)] = std::log(0.1f);
  SamplingParams params;
  params.grammar = "root ::= [bc]";
  int bs = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    params.seed = seed;
    const TokenId token = Make(params)->Sample(logits.data());
    ASSERT_THAT(token, testing::AnyOf(b, c));
    bs += token == b ? 1 : 0;
  }
  EXPECT_NEAR(bs / 2000.0, 0.75, 0.04);
  params.top_k = 1;  // of what is allowed
  for (params.seed = 0; params.seed < 20; ++params.seed)
    EXPECT_EQ(Make(params)->Sample(logits.data()), b);
}

TEST_F(SamplerTest, ATextThatNoTokenCanGoOnFromIsAnErrorAndNotAnEnd) {
  const TokenId a = TokenOf('a');
  std::vector<float> logits(kVocab, 0.0f);
  logits[static_cast<size_t>(a)] = 5.0f;
  SamplingParams params = Greedy();
  params.grammar = "root ::= \"a\" \"b\"";
  params.logit_bias[TokenOf('b')] = -std::numeric_limits<float>::infinity();
  for (uint32_t i = 0; i < kVocab; ++i) {  // and nothing that begins with it
    if (model_->tokenizer().Piece(static_cast<TokenId>(i), false).starts_with("b"))
      params.logit_bias[static_cast<TokenId>(i)] = -std::numeric_limits<float>::infinity();
    if (model_->tokenizer().Piece(static_cast<TokenId>(i), false).starts_with("ab"))
      params.logit_bias[static_cast<TokenId>(i)] = -std::numeric_limits<float>::infinity();
  }
  auto sampler = Make(params);
  EXPECT_EQ(sampler->Sample(logits.data()), a);
  EXPECT_TRUE(sampler->status().ok());
  (void)sampler->Sample(logits.data());
  EXPECT_EQ(sampler->status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(sampler->status().message(), HasSubstr("grammar: no token"));
}

TEST_F(SamplerTest, ACompleteGrammarEndsWhateverIgnoreEosSays) {
  SamplingParams params = Greedy();
  params.grammar = "root ::= \"a\"";
  params.ignore_eos = true;
  const std::vector<float> logits(kVocab, 0.0f);
  auto sampler = Make(params);
  EXPECT_EQ(model_->tokenizer().Piece(sampler->Sample(logits.data()), false), "a");
  EXPECT_TRUE(model_->tokenizer().IsEndOfGeneration(sampler->Sample(logits.data())));
  EXPECT_TRUE(sampler->status().ok());
}

TEST_F(SamplerTest, BadGrammarAndBadValuesAreRefused) {
  SamplingParams params;
  params.grammar = "root ::= \"unterminated";
  EXPECT_EQ(ErrorOf(params).code(), StatusCode::kInvalidArgument);
  params.grammar = "other ::= \"x\"";
  EXPECT_EQ(ErrorOf(params).code(), StatusCode::kInvalidArgument);
  const auto with = [](auto change) {
    SamplingParams p;
    change(p);
    return p;
  };
  EXPECT_THAT(ErrorOf(with([](auto& p) { p.temperature = -1; })).message(),
              HasSubstr("temperature: -1"));
  EXPECT_THAT(ErrorOf(with([](auto& p) { p.top_p = 1.5f; })).message(), HasSubstr("top_p: 1.5"));
  EXPECT_THAT(ErrorOf(with([](auto& p) { p.min_p = std::nanf(""); })).message(),
              HasSubstr("min_p: nan"));
  EXPECT_THAT(ErrorOf(with([](auto& p) { p.repetition_penalty = 0; })).message(),
              HasSubstr("repetition_penalty"));
  EXPECT_THAT(ErrorOf(with([](auto& p) { p.logit_bias[300] = 1; })).message(),
              HasSubstr("below 300"));
}

}  // namespace
}  // namespace kvlink::model
