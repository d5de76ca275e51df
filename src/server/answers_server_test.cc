// What a client reads in the answers to its prompts, and what they find of earlier ones.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

class AnswersServerTest : public ServerHarness {};

// --- answers ---

TEST_F(AnswersServerTest, AChatAnswerHasOpenAisFormAndOurs) {
  Start();
  const HttpReply reply = Post(kChat, ChatBody("hi"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  EXPECT_FALSE(reply.headers.at("x-request-id").empty());
  const Json json = reply.json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "fake-1b");
  EXPECT_THAT(json["id"].get<std::string>(), ::testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(json["choices"][0]["message"],
            Json({{"role", "assistant"}, {"content", "Hello world"}}));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  const Json& usage = json["usage"];
  EXPECT_EQ(usage["completion_tokens"], 11);
  EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<int>() + 11);
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(json["timings"]["predicted_n"], 11);
  EXPECT_EQ(json["timings"]["cache_n"], 0);
  EXPECT_EQ(json["timings"]["prompt_n"], usage["prompt_tokens"]);
  EXPECT_EQ(json["timings"]["predicted_per_second"], 1e3 * 11 / 4);
  EXPECT_EQ(json["kvlink"]["miss_reason"], "cold");
}

TEST_F(AnswersServerTest, ARepeatedPromptReportsItsCachedTokens) {
  Start();
  Post(kChat, ChatBody("the same question"));
  const Json json = Post(kChat, ChatBody("the same question")).json();
  const int prompt = json["usage"]["prompt_tokens"];
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], prompt - 1);
  EXPECT_EQ(json["kvlink"]["exact"].get<int>() + json["kvlink"]["partial"].get<int>(), prompt - 1);
  EXPECT_EQ(json["timings"]["cache_n"], prompt - 1);
  EXPECT_EQ(json["timings"]["prompt_n"], 1);
  // Unless it asks not to be served from the cache.
  const Json fresh = Post(kChat, ChatBody("the same question", {{"cache_prompt", false}})).json();
  EXPECT_EQ(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(fresh["kvlink"]["miss_reason"], "policy");
}

TEST_F(AnswersServerTest, ADivergedPromptIsToldWhichMessageDiffers) {
  Start();
  const auto body = [](const char* first, const char* second) {
    return Json{{"messages",
                 {{{"role", "system"}, {"content", "You are kind."}},
                  {{"role", "user"}, {"content", first}},
                  {{"role", "user"}, {"content", second}}}}};
  };
  Post(kChat, body("ONE", "TWO"));
  const Json json = Post(kChat, body("ONE", "THREE")).json();
  EXPECT_EQ(json["kvlink"]["miss_reason"], "diverged");
  EXPECT_EQ(json["kvlink"]["diverged_message"], 2);
  EXPECT_GT(json["kvlink"]["diverged_at"], 0);
}

TEST_F(AnswersServerTest, RecentRequestsTellWhereTheyDivergedWithoutTheirText) {
  options_.settings = {{"fingerprint_window", 8}};
  options_.recent_requests = 2;
  Start();
  const auto body = [](const char* clock) {
    return Json{{"messages",
                 {{{"role", "system"}, {"content", std::string("Time: 10:2") + clock + " RULES"}},
                  {{"role", "user"}, {"content", "MY SECRET"}}}}};
  };
  for (const char* clock : {"1", "2", "3"}) Post(kChat, body(clock));
  const HttpReply reply = Get("/kvlink/requests");
  const Json json = reply.json();
  EXPECT_EQ(json["capacity"], 2);
  EXPECT_EQ(json["similar"], "off");
  EXPECT_EQ(json["settings"]["fingerprint_window"], 8);
  ASSERT_EQ(json["data"].size(), 2u) << "the ring is bounded";
  const Json& last = json["data"][1];
  EXPECT_EQ(last["miss_reason"], "diverged");
  EXPECT_EQ(last["diverged_token"], "3");
  EXPECT_EQ(last["diverged_message"], 0);
  EXPECT_TRUE(last["diverged_after"].get<std::string>().ends_with(": 10:2"));
  EXPECT_EQ(last["exact"].get<int>() + last["partial"].get<int>(), last["diverged_at"]);
  EXPECT_EQ(last["sketch"].size(), 16u);
  EXPECT_EQ(reply.body.find("SECRET"), std::string::npos);
  EXPECT_EQ(reply.body.find("RULES"), std::string::npos);
  EXPECT_EQ(Get("/kvlink/requests?limit=1").json()["data"].size(), 1u);
  for (const char* query : {"?limit=", "?limit=x", "?limit=-1", "?last=3"}) {
    EXPECT_EQ(Get(std::string("/kvlink/requests") + query).status, 400) << query;
  }
  EXPECT_THAT(Get("/kvlink/requests?limit=x").body, ::testing::HasSubstr("whole number, not 'x'"));
}

TEST_F(AnswersServerTest, RecentRequestsCanBeSwitchedOff) {
  options_.recent_requests = 0;
  Start();
  Post(kChat, ChatBody("hi"));
  EXPECT_EQ(Get("/kvlink/requests").status, 404);
}

TEST_F(AnswersServerTest, AStreamSaysTheSameAsAWholeAnswer) {
  Start();
  Say("\xe4\xbd\xa0\xe5\xa5\xbd, world \xf0\x9f\x98\x80");
  const std::string whole = Post(kChat, ChatBody("hi")).json()["choices"][0]["message"]["content"];
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"stream", true}}));
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
  const std::vector<Json> events = Events(reply.body);
  EXPECT_EQ(StreamedText(events, 0), whole);
  EXPECT_EQ(events.front()["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  const Json& last = events.back();
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  // Usage is in the last chunk even when nobody asked for it.
  EXPECT_GT(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_TRUE(last.contains("timings"));
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events.front()["id"]);
  }
}

TEST_F(AnswersServerTest, IncludeUsagePutsUsageIntoAChunkOfItsOwn) {
  Start();
  const auto events = Events(
      Post(kChat, ChatBody("hi", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}))
          .body);
  const Json& last = events.back();
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(last["usage"]["completion_tokens"], 11);
  for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_TRUE(events[i]["usage"].is_null());
}

TEST_F(AnswersServerTest, SeveralChoicesKeepTheirOwnText) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"n", 3}})).json();
  ASSERT_EQ(json["choices"].size(), 3u);
  EXPECT_EQ(json["choices"][2]["message"]["content"], "Hello world 2");
  const auto events = Events(Post(kChat, ChatBody("hi", {{"n", 3}, {"stream", true}})).body);
  EXPECT_EQ(StreamedText(events, 0), "Hello world");
  EXPECT_EQ(StreamedText(events, 1), "Hello world 1");
  EXPECT_EQ(StreamedText(events, 2), "Hello world 2");
}

TEST_F(AnswersServerTest, ChatLogprobsComeInChatsForm) {
  Start();
  Say("h\xc3\xa9");
  const Json json = Post(kChat, ChatBody("hi", {{"logprobs", true}, {"top_logprobs", 2}})).json();
  const Json& content = json["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0]["token"], "h");
  EXPECT_EQ(content[0]["logprob"], -0.25);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[1]["token"], "bytes:\\xc3");
  EXPECT_EQ(content[1]["bytes"], Json({0xc3}));
  const auto events =
      Events(Post(kChat, ChatBody("hi", {{"logprobs", true}, {"stream", true}})).body);
  size_t entries = 0;
  for (const Json& event : events) {
    if (event["choices"][0]["logprobs"].is_object())
      entries += event["choices"][0]["logprobs"]["content"].size();
  }
  EXPECT_EQ(entries, 3u);
}

TEST_F(AnswersServerTest, CompletionLogprobsComeInCompletionsForm) {
  Start();
  Say("ok");
  const Json json = Post(kCompletions, {{"prompt", "Q:"}, {"logprobs", 2}, {"echo", true}}).json();
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "Q:ok");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"<s>", "Q", ":", "o", "k"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({nullptr, -0.5, -0.5, -0.25, -0.25}));
  EXPECT_EQ(logprobs["top_logprobs"][3], Json({{"o", -0.25}, {"z", -2.0}}));
  EXPECT_EQ(logprobs["text_offset"].size(), 5u);
}

TEST_F(AnswersServerTest, MaxTokensZeroWithEchoGivesThePromptAlone) {
  Start();
  const Json json =
      Post(kCompletions, {{"prompt", "Q:"}, {"logprobs", 0}, {"echo", true}, {"max_tokens", 0}})
          .json();
  EXPECT_EQ(json["choices"][0]["text"], "Q:");
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_EQ(Metric("vllm:generation_tokens_total"), 0);
}

TEST_F(AnswersServerTest, PromptsInEveryFormAreAnsweredInOrder) {
  Start();
  engine_->set_script([](const engine::GenerationRequest& request, uint32_t) {
    return "n=" + std::to_string(request.prompt.size());
  });
  const auto texts = [&](const Json& prompt) {
    std::string all;
    const HttpReply reply = Post(kCompletions, {{"prompt", prompt}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    const Json json = reply.json();
    for (const Json& choice : json["choices"]) all += choice["text"].get<std::string>() + ";";
    return all;
  };
  EXPECT_EQ(texts("A B"), "n=4;");
  EXPECT_EQ(texts(Json::array({"A", "A B"})), "n=2;n=4;");
  EXPECT_EQ(texts({65, 66}), "n=2;");
  EXPECT_EQ(texts({{65}, {65, 66, 67}}), "n=1;n=3;");
}

TEST_F(AnswersServerTest, SeveralPromptsAddUpInUsage) {
  Start();
  const Json json = Post(kCompletions, {{"prompt", {"A", "B C"}}, {"n", 2}}).json();
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_EQ(json["choices"][3]["index"], 3);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2 + 4);
  EXPECT_EQ(json["kvlink"]["prompts"].size(), 2u);
}

TEST_F(AnswersServerTest, PromptLogprobsComeInVllmsForm) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"prompt_logprobs", 1}})).json();
  const Json& list = json["choices"][0]["prompt_logprobs"];
  EXPECT_EQ(list.size(), json["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["256"]["decoded_token"], "<|im_start|>");
}

TEST_F(AnswersServerTest, AStopStringIsReported) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"stop", {"wor"}}})).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hello ");
  EXPECT_EQ(json["choices"][0]["stop_reason"], "wor");
}

TEST_F(AnswersServerTest, MaxTokensEndsWithLength) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"max_tokens", 4}})).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hell");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
}

TEST_F(AnswersServerTest, UnknownFieldsAreIgnored) {
  Start();
  const Json more = {{"store", true},
                     {"metadata", {{"a", 1}}},
                     {"user", "me"},
                     {"service_tier", "auto"},
                     {"no_such_field", Json::array({1, 2})},
                     {"prompt_cache_key", "k"}};
  EXPECT_EQ(Post(kChat, ChatBody("hi", more)).status, 200);
}

// --- own output ---

TEST_F(AnswersServerTest, AnAnswerSentBackHitsTheGeneratedTokens) {
  Start();
  std::vector<std::vector<TokenId>> seen;
  engine_->set_prompts_seen(&seen);
  Say("  some lower case answer \xe4\xbd\xa0");
  const std::string answer =
      Post(kChat, ChatBody("question")).json()["choices"][0]["message"]["content"];
  Json body = ChatBody("question");
  body["messages"].push_back(
      {{"role", "assistant"}, {"content", {{{"type", "text"}, {"text", answer}}}}});
  body["messages"].push_back({{"role", "user"}, {"content", "and then?"}});
  ASSERT_EQ(Post(kChat, body).status, 200);
  ASSERT_EQ(seen.size(), 2u);
  std::vector<TokenId> rows = seen[0];
  for (const char c : answer) rows.push_back(static_cast<unsigned char>(c));
  ASSERT_GE(seen[1].size(), rows.size());
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), seen[1].begin()));
}

TEST_F(AnswersServerTest, ACompletionContinuedHitsTheGeneratedTokens) {
  Start();
  std::vector<std::vector<TokenId>> seen;
  engine_->set_prompts_seen(&seen);
  const std::string text = Post(kCompletions, {{"prompt", "once"}}).json()["choices"][0]["text"];
  Post(kCompletions, {{"prompt", "once" + text + " more"}});
  ASSERT_EQ(seen.size(), 2u);
  std::vector<TokenId> rows = seen[0];
  for (const char c : text) rows.push_back(static_cast<unsigned char>(c));
  EXPECT_TRUE(std::equal(rows.begin(), rows.end(), seen[1].begin()));
}

TEST_F(AnswersServerTest, DoNotStoreIsHandedOn) {
  Start();
  Post(kChat, ChatBody("a secret", {{"kvlink", {{"store", false}}}}));
  const Json json = Post(kChat, ChatBody("a secret")).json();
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

}  // namespace
}  // namespace kvlink::server
