#include "server/answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/testing/fakes.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::json;

class AnswerTest : public ::testing::Test {
 protected:
  // One prompt of three tokens, one branch that says "a" and "b".
  std::vector<PromptOutcome> Outcome() {
    auto report = std::make_shared<engine::RequestReport>();
    report->prompt_tokens = 3;
    report->generated_tokens = 3;  // with the end-of-generation token
    engine::BranchResult branch;
    branch.text = "ab";
    branch.tokens = {'a', 'b'};
    report->branches.push_back(branch);
    PromptOutcome outcome;
    outcome.report = report;
    outcome.events.resize(1);
    for (const TokenId token : {TokenId{'a'}, TokenId{'b'}, kImEnd}) {
      engine::TokenEvent event;
      event.token = token;
      event.logprob = -std::numeric_limits<float>::infinity();
      outcome.events[0].push_back(event);
    }
    return {outcome};
  }
  AnswerFormat Format(bool chat, int logprobs) {
    AnswerFormat::Head head;
    head.chat = chat;
    head.logprobs = logprobs;
    return AnswerFormat(head, tokenizer_);
  }
  FakeTokenizer tokenizer_;
};

TEST_F(AnswerTest, LogprobsLeaveTheEndOfGenerationTokenOutAndKnowNoInfinity) {
  const Json chat = Json::parse(Format(true, 0).Whole(Outcome()));
  const Json& content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["logprob"], -9999.0);
  const Json text = Json::parse(Format(false, 0).Whole(Outcome()));
  EXPECT_EQ(text["choices"][0]["logprobs"]["tokens"], Json({"a", "b"}));
  EXPECT_EQ(text["choices"][0]["logprobs"]["text_offset"], Json({0, 1}));
}

TEST_F(AnswerTest, LogprobsThatNobodyAskedForAreNull) {
  EXPECT_TRUE(Json::parse(Format(true, -1).Whole(Outcome()))["choices"][0]["logprobs"].is_null());
}

TEST_F(AnswerTest, RatesOfNothingAreZero) {
  const Json timings = Json::parse(Format(true, -1).Whole(Outcome()))["timings"];
  EXPECT_EQ(timings["prompt_per_second"], 0.0);
  EXPECT_EQ(timings["predicted_per_second"], 0.0);
  for (const char* key :
       {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
        "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"}) {
    EXPECT_TRUE(timings.contains(key)) << key;
  }
}

TEST_F(AnswerTest, BrokenUtf8StaysValidJson) {
  auto outcomes = Outcome();
  auto report = std::make_shared<engine::RequestReport>(*outcomes[0].report);
  report->branches[0].text = "a\xff";
  outcomes[0].report = report;
  EXPECT_EQ(Json::parse(Format(true, -1).Whole(outcomes))["choices"][0]["message"]["content"],
            "a\xef\xbf\xbd");
}

TEST(TokenText, ShowsBytesThatAreNoCharacterAsBytes) {
  EXPECT_EQ(TokenText("h\xc3\xa9\xf0\x9f\x98\x80"), "h\xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_EQ(TokenText("\xc3"), "bytes:\\xc3");
  EXPECT_EQ(TokenText("\xa9"), "bytes:\\xa9");
  EXPECT_EQ(TokenText("\xed\xa0\x80"), "bytes:\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(TokenText("\xc0\x80"), "bytes:\\xc0\\x80");           // overlong
  EXPECT_EQ(TokenText(""), "");
}

}  // namespace
}  // namespace kvlink::server
