#include "engine/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/logprobs.h"
#include "engine/testing/fake_model.h"
#include "engine/testing/reference.h"

namespace kvlink::engine {
namespace {

// The search, fed from the pure model.
std::vector<BeamSearch::Hypothesis> Search(const FakeModel& model, const BeamParams& params,
                                           const std::vector<TokenId>& prompt) {
  BeamSearch search(params, model.tokenizer());
  while (!search.done()) {
    std::vector<TopList> candidates;
    for (const BeamSearch::Beam& beam : search.beams()) {
      std::vector<TokenId> context = prompt;
      context.insert(context.end(), beam.tokens.begin(), beam.tokens.end());
      const std::vector<float> logits = model.Logits(context);
      candidates.push_back(std::make_shared<const std::vector<TokenLogprob>>(
          TopLogprobs(logits, LogSumExp(logits), static_cast<int>(search.candidates_needed()))));
    }
    const size_t before = search.beams().size();
    for (const uint32_t parent : search.Step(candidates)) EXPECT_LT(parent, before);
  }
  return search.hypotheses();
}

TEST(BeamSearch, AgreesWithABruteForceReference) {
  for (const float eos_bias : {-100.0f, 0.0f, 3.0f}) {
    const FakeModel model({.eos_bias = eos_bias});
    for (uint32_t width = 1; width <= 5; ++width) {
      for (const float penalty : {0.0f, 1.0f, 2.0f}) {
        for (TokenId seed = 0; seed < 10; ++seed) {
          const std::vector<TokenId> prompt = {2, seed, 5};
          const BeamParams params{width, 1 + static_cast<uint32_t>(seed) * 2, penalty, false, {}};
          const auto found = Search(model, params, prompt);
          const auto expected = ReferenceBeam(model, params, prompt);
          ASSERT_EQ(found.size(), expected.size());
          for (size_t i = 0; i < found.size(); ++i) {
            ASSERT_EQ(found[i].beam.tokens, expected[i].tokens) << "hypothesis " << i;
            ASSERT_NEAR(found[i].score, expected[i].score, 1e-9);
          }
        }
      }
    }
  }
}

TEST(BeamSearch, WidthOneIsGreedy) {
  const FakeModel model({.eos_bias = -100});
  const std::vector<TokenId> prompt = {3, 4};
  const auto found = Search(model, {1, 12, 1.0f, false, {}}, prompt);
  std::vector<TokenId> greedy, context = prompt;
  for (int i = 0; i < 12; ++i) {
    const std::vector<float> logits = model.Logits(context);
    greedy.push_back(
        static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    context.push_back(greedy.back());
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].beam.tokens, greedy);
  EXPECT_EQ(found[0].reason, FinishReason::kLength);
}

TEST(BeamSearch, IgnoreEosRunsToTheEnd) {
  const FakeModel model({.eos_bias = 6});
  const auto ended = Search(model, {2, 20, 1.0f, false, {}}, {7});
  EXPECT_EQ(ended[0].reason, FinishReason::kStop);
  for (const auto& hypothesis : Search(model, {2, 20, 1.0f, true, {}}, {7})) {
    EXPECT_EQ(hypothesis.beam.tokens.size(), 20u);
    EXPECT_EQ(hypothesis.reason, FinishReason::kLength);
  }
}

TEST(BeamSearch, AStopStringEndsABeamLikeTheEndToken) {
  const FakeModel model({.eos_bias = -100});
  int ended = 0;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    const std::string stop(1, letter);
    for (const auto& hypothesis : Search(model, {3, 16, 1.0f, false, {stop}}, {9, 9})) {
      const std::string text = model.tokenizer().Decode(hypothesis.beam.tokens, false);
      const bool contains = text.find(letter) != std::string::npos;
      EXPECT_EQ(contains, hypothesis.reason == FinishReason::kStop);
      EXPECT_EQ(contains, hypothesis.stop_text == stop);
      ended += contains ? 1 : 0;
    }
  }
  EXPECT_GT(ended, 10);
}

TEST(BeamSearch, StoppingEarlyReturnsTheLiveBeams) {
  const FakeModel model;
  BeamSearch search({2, 9, 1.0f, false, {}}, model.tokenizer());
  search.Stop(FinishReason::kCancelled);
  ASSERT_EQ(search.hypotheses().size(), 1u);
  EXPECT_TRUE(search.hypotheses()[0].beam.tokens.empty());
  EXPECT_EQ(search.hypotheses()[0].reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace kvlink::engine
