// Requests whose answers are held to something: a sampler that finds no token ends its request
// alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/testing/harness.h"

namespace kvlink::engine {
namespace {

// Gives token 5 `limit` times, then nothing that could follow.
class LimitedSampler : public model::Sampler {
 public:
  explicit LimitedSampler(int limit) : limit_(limit) {}
  TokenId Sample(const float*) override {
    if (given_++ < limit_) return 5;
    status_ = Status(StatusCode::kInvalidArgument, "grammar: no token can follow");
    return 0;
  }
  void Observe(TokenId) override {}
  Status status() const override { return status_; }

 private:
  int limit_, given_ = 0;
  Status status_;
};

// Requests with a grammar get a limited sampler: its limit is the grammar's length.
HarnessOptions Options() {
  HarnessOptions options;
  options.model.eos_bias = -100;
  options.engine.new_sampler =
      [](const model::Model& model,
         const model::SamplingParams& params) -> Result<std::unique_ptr<model::Sampler>> {
    if (params.grammar.empty()) return NewFakeSampler(model, params);
    const auto limit = static_cast<int>(params.grammar.size());
    return std::unique_ptr<model::Sampler>(std::make_unique<LimitedSampler>(limit));
  };
  return options;
}

GenerationRequest Request(const std::string& grammar) {
  GenerationRequest request;
  for (TokenId token = 2; token < 22; ++token) request.prompt.push_back(token);
  request.sampling.temperature = 0;
  request.sampling.grammar = grammar;
  request.max_tokens = 8;
  return request;
}

TEST(EngineConstraints, ASamplerThatFindsNoTokenEndsItsRequestAlone) {
  Harness harness(Options());
  const auto alone = harness.Run(Request(""));
  for (const char* grammar : {"", "x", "xxxxx"}) {
    const auto held = harness.Submit(Request(std::string("g") + grammar));
    const auto free = harness.Submit(Request(""));
    held->WaitUntilFinished();
    free->WaitUntilFinished();
    EXPECT_EQ(held->report().status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(held->report().status.message(), ::testing::HasSubstr("grammar: no token"));
    ASSERT_EQ(held->report().branches.size(), 1u);
    EXPECT_EQ(held->report().branches[0].reason, FinishReason::kError);
    EXPECT_EQ(held->report().branches[0].tokens.size(), std::string(grammar).size() + 1);
    EXPECT_EQ(free->report().branches[0].tokens, alone->report().branches[0].tokens);
  }
}

TEST(EngineConstraints, OneBranchOfSeveralThatFindsNoTokenEndsThemAll) {
  Harness harness(Options());
  GenerationRequest request = Request("ggg");
  request.n = 3;
  const auto outcome = harness.Run(request);
  EXPECT_EQ(outcome->report().status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(outcome->times_finished(), 1);
  EXPECT_EQ(harness.Run(Request(""))->report().branches[0].tokens.size(), 8u);
}

TEST(EngineConstraints, BeamsTakeNoGrammar) {
  Harness harness(Options());
  GenerationRequest request = Request("g");
  request.beam_search = true;
  const Result<RequestId> id = harness.engine().Submit(request, [](const Event&) {});
  ASSERT_FALSE(id.ok());
  EXPECT_THAT(id.status().message(), ::testing::HasSubstr("beam search"));
}

}  // namespace
}  // namespace kvlink::engine
