#include "server/admin.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/dashboard.h"

namespace kvlink::server {
namespace {

constexpr uint32_t kVocab = 1000;

template <typename T>
ApiError ErrorIn(const Parsed<T>& parsed) {
  const ApiError* error = std::get_if<ApiError>(&parsed);
  return error != nullptr ? *error : ApiError{200, "no error", "", ""};
}

TEST(Admin, APinKeepsWhatDecidesTheTokensAndNothingOfSampling) {
  const auto parsed = ParsePinRequest(
      R"({"prompt": "abc", "cache_salt": "s", "add_special_tokens": false, "ttl_s": 2.5,
          "temperature": 1.5, "n": 4, "stream": true, "echo": true})",
      Limits{}, kVocab);
  const PinRequest* pin = std::get_if<PinRequest>(&parsed);
  ASSERT_NE(pin, nullptr) << ErrorIn(parsed).message;
  EXPECT_EQ(pin->ttl.count(), 2500);
  EXPECT_EQ(std::get<std::string>(pin->prompt.prompts.at(0)), "abc");
  EXPECT_EQ(pin->prompt.generation.ns.salt, "s");
  EXPECT_FALSE(pin->prompt.add_special_tokens);
  EXPECT_FALSE(pin->prompt.stream);
  EXPECT_FALSE(pin->prompt.echo);
  EXPECT_EQ(pin->prompt.generation.n, 1u);
}

TEST(Admin, APinWithoutATimeHoldsForAnHour) {
  const auto parsed =
      ParsePinRequest(R"({"messages": [{"role": "user", "content": "x"}]})", Limits{}, kVocab);
  ASSERT_TRUE(std::holds_alternative<PinRequest>(parsed)) << ErrorIn(parsed).message;
  EXPECT_EQ(std::get<PinRequest>(parsed).ttl, std::chrono::hours(1));
  EXPECT_TRUE(std::get<PinRequest>(parsed).prompt.chat);
}

TEST(Admin, WhatIsNoPinIsRefusedByNameAndValue) {
  const auto refused = [](const char* body) { return ErrorIn(ParsePinRequest(body, {}, kVocab)); };
  EXPECT_EQ(refused("{}").code, "missing_field");
  EXPECT_EQ(refused(R"({"prompt": "x", "ttl_s": 0})").param, "ttl_s");
  EXPECT_NE(refused(R"({"prompt": "x", "ttl_s": 1e9})").message.find("1000000000"),
            std::string::npos);
  EXPECT_EQ(refused(R"({"prompt": "x", "ttl_s": "long"})").param, "ttl_s");
  EXPECT_EQ(refused(R"({"prompt": ["a", "b"]})").param, "prompt");
  EXPECT_EQ(refused(R"({"prompt": "x", "messages": [{"role": "user", "content": "y"}]})").param,
            "prompt");
  EXPECT_EQ(refused("[]").status, 400);
  EXPECT_EQ(refused("").status, 400);
}

TEST(Admin, UnpinningIsForOnePromptAsPinningIs) {
  const auto parsed = ParseUnpinRequest(
      R"({"prompt": "abc", "cache_salt": "s", "temperature": 1.5, "n": 4})", Limits{}, kVocab);
  const ApiRequest* request = std::get_if<ApiRequest>(&parsed);
  ASSERT_NE(request, nullptr) << ErrorIn(parsed).message;
  EXPECT_EQ(request->generation.ns.salt, "s");
  EXPECT_EQ(request->generation.n, 1u);
  const auto refused = [](const char* body) {
    return ErrorIn(ParseUnpinRequest(body, {}, kVocab));
  };
  EXPECT_EQ(refused("{}").code, "missing_field");
  EXPECT_NE(refused(R"({"prompt": ["a", "b"]})").message.find("not 2"), std::string::npos);
}

TEST(Admin, WarmingGeneratesOneHiddenGreedyToken) {
  const auto parsed = ParseWarmRequest(
      R"({"prompt": ["a", "b"], "max_tokens": 99, "temperature": 1, "stream": true})", Limits{},
      kVocab);
  const ApiRequest* request = std::get_if<ApiRequest>(&parsed);
  ASSERT_NE(request, nullptr) << ErrorIn(parsed).message;
  EXPECT_EQ(request->prompts.size(), 2u);
  EXPECT_TRUE(request->hide_generated);
  EXPECT_FALSE(request->stream);
  EXPECT_EQ(request->generation.max_tokens, 1u);
  EXPECT_EQ(request->generation.sampling.temperature, 0);
  EXPECT_EQ(request->similar, SimilarPolicy::kOff);
  EXPECT_EQ(
      ErrorIn(ParseWarmRequest(R"({"prompt": "x", "kvlink": {"store": false}})", {}, kVocab)).param,
      "kvlink.store");
}

TEST(Admin, AFlushChoosesNothing) {
  EXPECT_FALSE(CheckFlushRequest(""));
  EXPECT_FALSE(CheckFlushRequest("{}"));
  EXPECT_EQ(CheckFlushRequest(R"({"salt": "x"})")->param, "salt");
  EXPECT_EQ(CheckFlushRequest("[1]")->status, 400);
}

TEST(Admin, AFullPinBudgetIsAConflictAndNoFullQueue) {
  const ApiError error = PinError(Status(StatusCode::kResourceExhausted, "pins hold 8 of 8 bytes"));
  EXPECT_EQ(error.status, 409);
  EXPECT_EQ(error.code, "pin_budget_exhausted");
  EXPECT_NE(error.message.find("8 of 8"), std::string::npos);
}

TEST(Dashboard, ThePolicyAllowsItsOwnScriptByHashAndNothingElse) {
  const HttpResponse page = DashboardPage();
  std::string policy;
  for (const auto& [name, value] : page.headers) {
    if (name == "Content-Security-Policy") policy = value;
  }
  EXPECT_NE(policy.find("default-src 'none'; script-src 'sha256-"), std::string::npos) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  EXPECT_EQ(page.body.find("<script>", page.body.find("<script>") + 1), std::string::npos);
}

}  // namespace
}  // namespace kvlink::server
