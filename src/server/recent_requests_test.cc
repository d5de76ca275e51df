#include "server/recent_requests.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "server/testing/fakes.h"

namespace kvlink::server {
namespace {

using Json = nlohmann::ordered_json;

std::vector<TokenId> RandomTokens(uint64_t seed, size_t count) {
  base::Random random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.Below(40'000));
  return tokens;
}

TEST(PromptSketch, IsEqualForEqualPromptsAndFarForStrangers) {
  const auto prompt = RandomTokens(1, 500);
  EXPECT_EQ(SketchSimilarity(SketchPrompt(prompt), SketchPrompt(prompt)), 1.0);
  for (uint64_t seed = 2; seed < 40; ++seed) {
    EXPECT_LE(SketchSimilarity(SketchPrompt(prompt), SketchPrompt(RandomTokens(seed, 500))), 0.25);
  }
}

TEST(PromptSketch, StaysNearWhenAFewTokensChangeOrMove) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const auto prompt = RandomTokens(seed, 500);
    auto edited = prompt;
    edited[5] = 1;
    edited.insert(edited.begin() + 6, {2, 3, 4});
    sum += SketchSimilarity(SketchPrompt(prompt), SketchPrompt(edited));
  }
  EXPECT_GT(sum / 40, 0.9);
}

TEST(PromptSketch, EstimatesHowMuchIsShared) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    auto prompt = RandomTokens(seed, 600);
    const auto sketch = SketchPrompt(prompt);
    const auto other = RandomTokens(1000 + seed, 300);
    std::copy(other.begin(), other.end(), prompt.begin());
    sum += SketchSimilarity(sketch, SketchPrompt(prompt));  // half of each: Jaccard 1/3
  }
  EXPECT_NEAR(sum / 60, 1.0 / 3, 0.06);
}

TEST(PromptSketch, OfTooFewTokensIsLikeNothing) {
  const std::vector<TokenId> three = {1, 2, 3};
  EXPECT_EQ(SketchSimilarity(SketchPrompt(three), SketchPrompt(three)), 0.0);
}

engine::RequestReport DivergedAt(uint32_t token, uint32_t size) {
  engine::RequestReport report;
  report.prompt_tokens = size;
  report.cached_tokens = token;
  report.partial_tokens = token % 32;
  report.computed_tokens = size - token;
  report.miss_reason = MissReason::kDiverged;
  report.diverged_at = token;
  return report;
}

TEST(RecentRequest, TellsTheTokenThatDivergedAndEightBeforeItAndNoMore) {
  const FakeTokenizer tokenizer;
  const std::vector<TokenId> prompt = tokenizer.Encode("0123456789ABCDEF", false, false);
  const RecentRequest request =
      DescribeRequest("id", {"shop", "pepper"}, DivergedAt(10, 16), prompt, size_t{1}, tokenizer);
  EXPECT_EQ(request.diverged_token, "A");
  EXPECT_EQ(request.diverged_after, "23456789");
  EXPECT_EQ(request.exact, 0u);
  EXPECT_EQ(request.partial, 10u);
  EXPECT_NE(request.salt, 0u);
  EXPECT_EQ(request.verdict, nullptr);
}

TEST(RecentRequest, OfACompleteHitShowsNoText) {
  const FakeTokenizer tokenizer;
  const std::vector<TokenId> prompt = tokenizer.Encode("0123456789", false, false);
  engine::RequestReport report = DivergedAt(9, 10);
  report.miss_reason = MissReason::kNone;
  const RecentRequest request = DescribeRequest("id", {"shop", ""}, report, prompt, {}, tokenizer);
  EXPECT_EQ(request.diverged_token, "");
  EXPECT_EQ(request.diverged_after, "");
  EXPECT_EQ(request.salt, 0u);
}

TEST(RecentRequest, WithoutItsPromptHasItsFiguresAlone) {
  const FakeTokenizer tokenizer;
  const std::vector<TokenId> prompt = tokenizer.Encode("0123456789ABCDEF", false, false);
  RecentRequest request =
      DescribeRequest("id", {"shop", ""}, DivergedAt(10, 16), prompt, size_t{1}, tokenizer);
  request.LeaveOutPrompt();
  RecentRequests recent(1);
  recent.Add(std::move(request));
  Json json;
  recent.Write("shop", 1, &json);
  const Json& shown = json["data"][0];
  EXPECT_EQ(shown["diverged_at"], 10);
  EXPECT_TRUE(shown["diverged_token"].is_null());
  EXPECT_TRUE(shown["diverged_after"].is_null());
  EXPECT_EQ(shown["sketch"], Json(std::vector<int>(16, 0)));
}

RecentRequest Named(const char* id, const char* tenant) {
  RecentRequest request;
  request.id = id;
  request.tenant = tenant;
  return request;
}

std::vector<std::string> Ids(const RecentRequests& recent, const char* tenant, size_t limit) {
  Json json;
  recent.Write(tenant, limit, &json);
  std::vector<std::string> ids;
  for (const Json& request : json["data"]) ids.push_back(request["id"]);
  return ids;
}

TEST(RecentRequests, KeepsTheNewestAndShowsATenantItsOwn) {
  RecentRequests recent(3);
  for (const char* id : {"a1", "a2", "a3"}) recent.Add(Named(id, "a"));
  recent.Add(Named("b1", "b"));
  EXPECT_EQ(Ids(recent, "a", 10), (std::vector<std::string>{"a2", "a3"}));
  EXPECT_EQ(Ids(recent, "b", 10), (std::vector<std::string>{"b1"}));
  EXPECT_EQ(Ids(recent, "a", 1), (std::vector<std::string>{"a3"}));
  EXPECT_EQ(Ids(recent, "c", 10), std::vector<std::string>{});
}

TEST(RecentRequests, WithoutRoomKeepsNothing) {
  RecentRequests recent(0);
  recent.Add(Named("a1", "a"));
  EXPECT_EQ(Ids(recent, "a", 10), std::vector<std::string>{});
}

}  // namespace
}  // namespace kvlink::server
