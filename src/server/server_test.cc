#include "server/server.h"
#include "server/reload_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>
#include <sstream>

#include "base/random.h"
#include "server/api_keys.h"
#include "server/testing/fakes.h"
#include "server/testing/http_client.h"

namespace kvlink::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeEngine;
using testing::FakeModel;
using ::testing::HasSubstr;
using testing::HttpClient;
using testing::HttpReply;
using Json = nlohmann::json;
using std::chrono::milliseconds;

const char kChat[] = "/v1/chat/completions";
const char kCompletions[] = "/v1/completions";

// Polls; false after a patience that no machine should need.
template <typename Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

Json ChatBody(const std::string& text, Json more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  body.update(more);
  return body;
}

// The JSON of every "data:" line but [DONE].
std::vector<Json> Events(const std::string& body) {
  std::vector<Json> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: ") && line != "data: [DONE]")
      events.push_back(Json::parse(line.substr(6)));
  }
  return events;
}

std::string StreamedText(const std::vector<Json>& events, int index) {
  std::string text;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      text += choice.contains("delta") ? choice["delta"].value("content", "")
                                       : choice.value("text", "");
    }
  }
  return text;
}

// The value of a metric's line that starts with `name` and contains `labels`; sums several.
double Metric(const std::string& text, const std::string& name, const std::string& labels = "") {
  double sum = 0;
  bool found = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool named = line.starts_with(name + "{") || line.starts_with(name + " ");
    if (!named || line.find(labels) == std::string::npos) continue;
    sum += std::stod(line.substr(line.rfind(' ') + 1));
    found = true;
  }
  EXPECT_TRUE(found) << name << " " << labels << " is not in\n" << text;
  return sum;
}

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options_.port = 0;
    options_.log_to_stderr = false;
    options_.seed_source = [seed = std::make_shared<std::atomic<uint64_t>>(1)] {
      return (*seed)++;
    };
    engine_options_.context = 4096;
  }
  ~ServerTest() override { StopServer(); }

  void Start() {
    engine_ = std::make_unique<FakeEngine>(model_, engine_options_);
    Result<std::unique_ptr<Server>> server = Server::Create(*engine_, options_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  void StopServer() {
    if (!server_) return;
    server_->Stop();
    server_->Stop();
    thread_.join();
    server_.reset();
  }
  uint16_t port() const { return server_->port(); }
  HttpReply Post(const std::string& path, const Json& body, const std::string& key = "") {
    return HttpClient(port()).Post(path, body, key);
  }
  HttpReply Get(const std::string& path) { return HttpClient(port()).Get(path); }
  std::string MetricsText() { return Get("/metrics").body; }
  void Say(const std::string& text) {
    engine_->set_script([text](const engine::GenerationRequest&, uint32_t) { return text; });
  }
  // Never ends by itself (as long as the context is `kEndless`).
  void SayWithoutEnd() { Say(std::string(size_t{32} << 20, 'x')); }
  static constexpr uint32_t kEndless = 1u << 30;

  FakeModel model_;
  ServerOptions options_;
  engine::EngineOptions engine_options_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

// --- answers ---

TEST_F(ServerTest, AChatAnswerHasOpenAisFormAndOurs) {
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

TEST_F(ServerTest, ARepeatedPromptReportsItsCachedTokens) {
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

TEST_F(ServerTest, ADivergedPromptIsToldWhichMessageDiffers) {
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

TEST_F(ServerTest, RecentRequestsTellWhereTheyDivergedWithoutTheirText) {
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
}

TEST_F(ServerTest, RecentRequestsCanBeSwitchedOff) {
  options_.recent_requests = 0;
  Start();
  Post(kChat, ChatBody("hi"));
  EXPECT_EQ(Get("/kvlink/requests").status, 404);
}

TEST_F(ServerTest, AStreamSaysTheSameAsAWholeAnswer) {
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

TEST_F(ServerTest, IncludeUsagePutsUsageIntoAChunkOfItsOwn) {
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

TEST_F(ServerTest, SeveralChoicesKeepTheirOwnText) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"n", 3}})).json();
  ASSERT_EQ(json["choices"].size(), 3u);
  EXPECT_EQ(json["choices"][2]["message"]["content"], "Hello world 2");
  const auto events = Events(Post(kChat, ChatBody("hi", {{"n", 3}, {"stream", true}})).body);
  EXPECT_EQ(StreamedText(events, 0), "Hello world");
  EXPECT_EQ(StreamedText(events, 1), "Hello world 1");
  EXPECT_EQ(StreamedText(events, 2), "Hello world 2");
}

TEST_F(ServerTest, ChatLogprobsComeInChatsForm) {
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

TEST_F(ServerTest, CompletionLogprobsComeInCompletionsForm) {
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

TEST_F(ServerTest, MaxTokensZeroWithEchoGivesThePromptAlone) {
  Start();
  const Json json =
      Post(kCompletions, {{"prompt", "Q:"}, {"logprobs", 0}, {"echo", true}, {"max_tokens", 0}})
          .json();
  EXPECT_EQ(json["choices"][0]["text"], "Q:");
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_EQ(Metric(MetricsText(), "vllm:generation_tokens_total"), 0);
}

TEST_F(ServerTest, PromptsInEveryFormAreAnsweredInOrder) {
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

TEST_F(ServerTest, SeveralPromptsAddUpInUsage) {
  Start();
  const Json json = Post(kCompletions, {{"prompt", {"A", "B C"}}, {"n", 2}}).json();
  ASSERT_EQ(json["choices"].size(), 4u);
  EXPECT_EQ(json["choices"][3]["index"], 3);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2 + 4);
  EXPECT_EQ(json["kvlink"]["prompts"].size(), 2u);
}

TEST_F(ServerTest, PromptLogprobsComeInVllmsForm) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"prompt_logprobs", 1}})).json();
  const Json& list = json["choices"][0]["prompt_logprobs"];
  EXPECT_EQ(list.size(), json["usage"]["prompt_tokens"].get<size_t>());
  EXPECT_TRUE(list[0].is_null());
  EXPECT_EQ(list[1]["256"]["decoded_token"], "<|im_start|>");
}

TEST_F(ServerTest, AStopStringIsReported) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"stop", {"wor"}}})).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hello ");
  EXPECT_EQ(json["choices"][0]["stop_reason"], "wor");
}

TEST_F(ServerTest, MaxTokensEndsWithLength) {
  Start();
  const Json json = Post(kChat, ChatBody("hi", {{"max_tokens", 4}})).json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hell");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
}

TEST_F(ServerTest, UnknownFieldsAreIgnored) {
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

TEST_F(ServerTest, AnAnswerSentBackHitsTheGeneratedTokens) {
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

TEST_F(ServerTest, ACompletionContinuedHitsTheGeneratedTokens) {
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

TEST_F(ServerTest, DoNotStoreIsHandedOn) {
  Start();
  Post(kChat, ChatBody("a secret", {{"kvlink", {{"store", false}}}}));
  const Json json = Post(kChat, ChatBody("a secret")).json();
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

// --- other routes ---

TEST_F(ServerTest, SmallRoutesAnswer) {
  options_.model_ids = {"served", "alias"};
  options_.version = "1.2.3";
  Start();
  EXPECT_EQ(Get("/health").json()["status"], "ok");
  EXPECT_EQ(Get("/version").json()["version"], "1.2.3");
  const Json models = Get("/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "served");
  EXPECT_EQ(models["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(Get("/v1/models/alias").json()["id"], "alias");
  EXPECT_EQ(Get("/v1/models/other").status, 404);
  EXPECT_EQ(Post(kChat, ChatBody("hi", {{"model", "alias"}})).json()["model"], "served");
}

TEST_F(ServerTest, TokenizeAndDetokenizeAreInverse) {
  Start();
  const Json tokens = Post("/tokenize", {{"content", "h\xc3\xa9llo <|im_end|>"}}).json();
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(Post("/detokenize", {{"tokens", tokens["tokens"]}}).json()["content"],
            "h\xc3\xa9llo <|im_end|>");
  // vLLM's form adds BOS, llama.cpp's does not.
  EXPECT_EQ(Post("/tokenize", {{"prompt", "A"}}).json()["tokens"], Json({258, 65}));
  EXPECT_EQ(Post("/tokenize", {{"content", "A"}}).json()["tokens"], Json::array({65}));
  const Json chat = Post("/tokenize", ChatBody("A")).json();
  EXPECT_EQ(chat["count"], Post(kChat, ChatBody("A")).json()["usage"]["prompt_tokens"]);
}

// --- errors ---

TEST_F(ServerTest, ErrorsHaveOpenAisForm) {
  Start();
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"temperature", 3.5}}));
  EXPECT_EQ(reply.status, 400);
  const Json error = reply.json()["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_THAT(error["message"].get<std::string>(),
              AllOf(HasSubstr("temperature"), HasSubstr("3.5")));
  EXPECT_TRUE(error.contains("code"));
}

TEST_F(ServerTest, WrongPathsMethodsAndModelsAreTold) {
  Start();
  EXPECT_EQ(Get("/nothing/here").status, 404);
  EXPECT_EQ(Get(kChat).status, 405);
  EXPECT_EQ(Post("/health", Json::object()).status, 405);
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"model", "gpt-17"}}));
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.json()["error"]["code"], "model_not_found");
  EXPECT_THAT(reply.body, HasSubstr("gpt-17"));
}

TEST_F(ServerTest, APromptBeyondTheContextIsRefusedWithTheFigures) {
  Start();
  const HttpReply reply = Post(kCompletions, {{"prompt", std::string(5000, 'A')}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "context_length_exceeded");
  EXPECT_THAT(reply.body, AllOf(HasSubstr("4096"), HasSubstr("5001")));
}

TEST_F(ServerTest, MoreChoicesThanRunAtOnceAreServedButNotMoreBeams) {
  engine_options_.max_sequences = 4;
  Start();
  const HttpReply choices = Post(kChat, ChatBody("hi", {{"n", 5}}));
  EXPECT_EQ(choices.status, 200);
  EXPECT_EQ(choices.json()["choices"].size(), 5u);
  EXPECT_EQ(Post(kChat, ChatBody("hi", {{"n", 4}, {"use_beam_search", true}})).status, 200);
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"n", 5}, {"use_beam_search", true}}));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["param"], "n");
  EXPECT_THAT(reply.body, AllOf(HasSubstr("5"), HasSubstr("4")));
}

TEST_F(ServerTest, AFullQueueAsksToRetry) {
  Start();
  engine_->set_refusal(Status(StatusCode::kResourceExhausted, "the queue is full"));
  const HttpReply reply = Post(kChat, ChatBody("hi"));
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.json()["error"]["type"], "rate_limit_error");
}

TEST_F(ServerTest, AnEngineErrorIsAnHttpErrorBeforeTheStreamAndAnEventInIt) {
  engine_options_.context = kEndless;
  // The fake engine is faster than any reader.
  options_.limits.max_pending_bytes = options_.limits.max_pending_events = size_t{1} << 40;
  Start();
  engine_->set_failure(Status(StatusCode::kInternal, "the graph broke"));
  for (const bool stream : {false, true}) {
    const HttpReply reply = Post(kChat, ChatBody("hi", {{"stream", stream}}));
    EXPECT_EQ(reply.status, 500);
    EXPECT_THAT(reply.body, HasSubstr("the graph broke"));
  }
  engine_->set_failure(Status::Ok());
  SayWithoutEnd();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kChat, ChatBody("hi", {{"stream", true}}).dump()));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().running == 1; }));
  engine_->set_failure(Status(StatusCode::kInternal, "the graph broke"));
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.body, HasSubstr("\"error\":{\"code\":null,\"message\":\"the graph broke\""));
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

// --- HTTP ---

TEST_F(ServerTest, RequestsOnOneConnectionAreAnsweredInOrder) {
  Start();
  HttpClient client(port());
  std::string all;
  for (int i = 1; i <= 20; ++i) {
    all += HttpClient::PostText(kChat, ChatBody("hi", {{"max_tokens", i % 11 + 1}}).dump());
  }
  client.Send(all);  // pipelined
  for (int i = 1; i <= 20; ++i) {
    EXPECT_EQ(client.Read().json()["usage"]["completion_tokens"], i % 11 + 1);
  }
  EXPECT_EQ(client.Get("/health").status, 200);  // and kept alive
}

TEST_F(ServerTest, OldAndOddHttpIsSpoken) {
  Start();
  HttpClient old(port());
  old.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().headers.at("connection"), "close");
  EXPECT_TRUE(old.AtEnd());

  // HEAD gets GET's head, and nothing behind it.
  HttpClient head(port());
  head.Send("HEAD /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(head.ReadRaw().substr(0, 15), "HTTP/1.1 200 OK");
  HttpClient again(port());
  again.Send("HEAD /health HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(again.ReadRaw().ends_with("\r\n\r\n"));

  HttpClient chunked(port());
  const std::string body = ChatBody("hi").dump();
  char size[16];
  std::snprintf(size, sizeof(size), "%zx\r\n", body.size());
  chunked.Send("POST " + std::string(kChat) +
               " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Send(size + body + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Read().status, 200);

  HttpClient expecting(port());
  expecting.Send("POST " + std::string(kChat) +
                 " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(expecting.Read().status, 100);
  expecting.Send(body);
  EXPECT_EQ(expecting.Read().status, 200);
}

TEST_F(ServerTest, AStreamWithoutChunkedEncodingEndsWithTheConnection) {
  Start();
  HttpClient client(port());
  const std::string body = ChatBody("hi", {{"stream", true}}).dump();
  client.Send("POST " + std::string(kChat) +
              " HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpReply reply = client.Read();
  EXPECT_FALSE(reply.headers.contains("transfer-encoding"));
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, ARequestInPiecesIsOneRequest) {
  Start();
  HttpClient client(port());
  for (const char c : HttpClient::PostText(kChat, ChatBody("hi").dump()))
    ASSERT_TRUE(client.Send(std::string(1, c)));
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ServerTest, BodiesAndHeadersHaveLimits) {
  options_.limits.max_body_bytes = 1000;
  options_.limits.max_header_bytes = 2000;
  Start();
  EXPECT_EQ(Post(kChat, ChatBody(std::string(2000, 'x'))).status, 413);
  HttpClient chunked(port());
  chunked.Send("POST " + std::string(kChat) +
               " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.Send("fff\r\n" + std::string(0xfff, 'x'));
  EXPECT_EQ(chunked.Read().status, 413);
  HttpClient header(port());
  header.Send("GET /health HTTP/1.1\r\nX: " + std::string(4000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.Read().status, 431);
  HttpClient endless(port());
  endless.Send("GET /health HTTP/1.1\r\nX: " + std::string(100000, 'x'));
  EXPECT_EQ(endless.Read().status, 431);
  HttpClient garbage(port());
  garbage.Send("\x16\x03\x01 this is no HTTP\r\n\r\n");
  const HttpReply reply = garbage.Read();
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ServerTest, ASlowSenderIsTimedOut) {
  options_.limits.request_timeout = milliseconds(50);
  Start();
  HttpClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(client.Read().status, 408);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerTest, AnIdleConnectionIsClosed) {
  options_.limits.idle_timeout = milliseconds(50);
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Get("/health").status, 200);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(ServerTest, AConnectionThatWaitsForItsAnswerIsNotIdle) {
  options_.limits.idle_timeout = milliseconds(20);
  options_.limits.request_timeout = milliseconds(20);
  Start();
  engine_->Hold();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kChat, ChatBody("hi").dump()));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 1; }));
  std::this_thread::sleep_for(milliseconds(100));
  engine_->Release();
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(ServerTest, ConnectionsBeyondTheLimitAreRefused) {
  options_.limits.max_connections = 2;
  Start();
  engine_->Hold();
  HttpClient one(port()), two(port());
  for (HttpClient* client : {&one, &two}) {
    client->Send(HttpClient::PostText(kChat, ChatBody("hi").dump()));
  }
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 2; }));
  HttpClient three(port());
  const HttpReply refused = three.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_GE(std::stoi(refused.headers.at("retry-after")), 1);
  one.Close();
  EXPECT_TRUE(Eventually([&] { return HttpClient(port()).Get("/health").status == 200; }));
  engine_->Release();
  EXPECT_EQ(two.Read().status, 200);
}

// --- clients that leave or do not read ---

TEST_F(ServerTest, AClientThatLeavesCancelsItsRequest) {
  engine_options_.context = kEndless;
  options_.limits.max_pending_bytes = options_.limits.max_pending_events = size_t{1} << 40;
  Start();
  SayWithoutEnd();
  uint64_t cancels = 0;
  for (const bool stream : {false, true}) {
    for (const bool reset : {false, true}) {
      HttpClient client(port());
      client.Send(
          HttpClient::PostText(kChat, ChatBody("hi", {{"stream", stream}, {"n", 2}}).dump()));
      ASSERT_TRUE(Eventually([&] { return engine_->Stats().running == 1; }));
      reset ? client.Reset() : client.Close();
      ++cancels;
      EXPECT_TRUE(Eventually(
          [&] { return engine_->cancels() == cancels && engine_->Stats().running == 0; }));
    }
  }
  EXPECT_EQ(Metric(MetricsText(), "kvlink_disconnects_total", "peer_closed"), 4);
}

TEST_F(ServerTest, AClientThatLeavesTheQueueCancelsAllItsPrompts) {
  Start();
  engine_->Hold();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kCompletions, Json{{"prompt", {"a", "b", "c"}}}.dump()));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 3; }));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 3; }));
  engine_->Release();
  // What never ran counts no tokens.
  EXPECT_EQ(Metric(MetricsText(), "vllm:prompt_tokens_total"), 0);
  EXPECT_EQ(Metric(MetricsText(), "vllm:request_success_total", "abort"), 3);
}

TEST_F(ServerTest, AReaderThatStopsIsCutOffAndStopsNobodyElse) {
  options_.limits.max_pending_bytes = 100000;
  options_.limits.max_pending_events = 1000000000;
  engine_options_.context = kEndless;
  Start();
  SayWithoutEnd();
  HttpClient slow(port());
  slow.ShrinkReceiveBuffer();
  slow.Send(HttpClient::PostText(kChat, ChatBody("hi", {{"stream", true}}).dump()));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().running == 1; }));
  const HttpReply other = Post(kChat, ChatBody("hi", {{"max_tokens", 50}}));
  EXPECT_EQ(other.status, 200);
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
  EXPECT_EQ(Metric(MetricsText(), "kvlink_disconnects_total", "slow_reader"), 1);
}

TEST_F(ServerTest, EventsBeyondTheInboxCancelTheRequest) {
  options_.limits.max_pending_events = 1;
  engine_options_.context = kEndless;
  Start();
  SayWithoutEnd();
  // Two branches give two events a step, so that the inbox overflows sooner or later.
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"stream", true}, {"n", 8}}));
  EXPECT_THAT(reply.body, HasSubstr("slow_reader"));
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
}

// A client that heeded a 429 would have the same branches computed again and again.
TEST_F(ServerTest, ARequestThatNeedsTooMuchMemoryIsNotAskedToComeAgain) {
  Start();
  engine_->set_failure(Status(StatusCode::kResourceExhausted, "branches at once: 4"));
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"n", 4}}));
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.json()["error"]["code"], "kv_memory_exceeded");
  EXPECT_EQ(reply.headers.count("retry-after"), 0u);
}

TEST_F(ServerTest, AWholeAnswerIsNoSlowReaderHoweverManyTokensComeAtOnce) {
  options_.limits.max_pending_events = 1;
  Start();
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"logprobs", true}, {"n", 4}}));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Metric(MetricsText(), "kvlink_disconnects_total", "slow_reader"), 0);
}

TEST_F(ServerTest, TwoHundredStreamsOnTwoThreads) {
  Start();
  engine_->Hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    ASSERT_TRUE(clients.back()->Send(HttpClient::PostText(
        kChat, ChatBody("question " + std::to_string(i), {{"stream", true}}).dump())));
  }
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 200; }));
  engine_->Release();
  for (const auto& client : clients)
    EXPECT_EQ(StreamedText(Events(client->Read().body), 0), "Hello world");
}

// --- stopping ---

TEST_F(ServerTest, StopLetsWhatRunsFinish) {
  Start();
  engine_->Hold();
  HttpClient idle(port()), busy(port());
  EXPECT_EQ(idle.Get("/health").status, 200);
  busy.Send(HttpClient::PostText(kChat, ChatBody("hi").dump()));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 1; }));
  server_->Stop();
  EXPECT_TRUE(idle.AtEnd());
  EXPECT_TRUE(
      Eventually([&] { return HttpClient(port()).Get("/health").status == 0; }));  // nobody accepts
  engine_->Release();
  const HttpReply reply = busy.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("connection"), "keep-alive");  // promised before the stop
  EXPECT_TRUE(busy.AtEnd());
  busy.Close();
  thread_.join();
  server_.reset();
}

TEST_F(ServerTest, StopCancelsWhatDoesNotFinishInTime) {
  options_.limits.shutdown_grace = milliseconds(50);
  Start();
  engine_->Hold();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kChat, ChatBody("hi").dump()));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 1; }));
  server_->Stop();
  thread_.join();
  EXPECT_EQ(client.Read().status, 0);
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
  server_.reset();
}

// --- keys and tenants ---

class KeyTest : public ServerTest {
 protected:
  KeyTest() {
    options_.api_keys_file = ::testing::TempDir() + "keys-" + std::to_string(getpid());
    WriteKeys();
  }
  void WriteKeys(const std::string& more = "") {
    std::ofstream file(options_.api_keys_file);
    file << "# made by the test\n";
    for (const auto& [key, tenant, rights] : {std::tuple{"key-a", "acme", R"(["inference"])"},
                                              {"key-b", "acme", R"(["inference"])"},
                                              {"key-c", "other", R"(["inference", "metrics"])"},
                                              {"key-m", "ops", R"(["metrics"])"}}) {
      std::string hash;
      for (const uint8_t byte : Sha256(key)) {
        char hex[3];
        std::snprintf(hex, sizeof(hex), "%02x", byte);
        hash += hex;
      }
      file << R"({"name": ")" << key << R"(-name", "hash": ")" << hash << R"(", "tenant": ")"
           << tenant << R"(", "rights": )" << rights << "}\n";
    }
    file << more;
  }
  ~KeyTest() override { std::remove(options_.api_keys_file.c_str()); }
  int Cached(const std::string& key, const std::string& salt = "") {
    const HttpReply reply =
        Post(kChat, ChatBody("a long shared prompt", {{"cache_salt", salt}}), key);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
  }
};

TEST_F(KeyTest, WhoHasNoKeyLearnsNothing) {
  Start();
  for (const std::string key : {"", "key-z", "key-aa", "key"}) {
    const HttpReply reply = Post(kChat, ChatBody("hi"), key);
    EXPECT_EQ(reply.status, 401) << key;
    EXPECT_EQ(reply.json()["error"]["code"], "invalid_api_key");
  }
  EXPECT_EQ(Get("/v1/models").status, 401);
  EXPECT_EQ(Get("/no/such/path").status, 401);
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(HttpClient(port()).Get("/v1/models", "key-a").status, 200);
}

TEST_F(KeyTest, ATenantHitsItsOwnBlocksAndNoOthers) {
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_GT(Cached("key-a"), 0);
  EXPECT_GT(Cached("key-b"), 0);  // the same tenant
  EXPECT_EQ(Cached("key-c"), 0);  // another
  EXPECT_GT(Cached("key-c"), 0);
}

TEST_F(KeyTest, ATenantSeesItsOwnRecentRequestsAndNoOthers) {
  Start();
  Post(kChat, ChatBody("HELLO"), "key-a");
  EXPECT_EQ(Get("/kvlink/requests").status, 401);
  EXPECT_EQ(HttpClient(port()).Get("/kvlink/requests", "key-b").json()["data"].size(), 1u);
  EXPECT_EQ(HttpClient(port()).Get("/kvlink/requests", "key-c").json()["data"].size(), 0u);
}

TEST_F(KeyTest, AClientsSaltOnlyNarrows) {
  Start();
  EXPECT_EQ(Cached("key-a", "s"), 0);
  EXPECT_GT(Cached("key-a", "s"), 0);
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_EQ(Cached("key-c", "s"), 0);  // the other tenant cannot name its way in
  EXPECT_EQ(Cached("key-c", "acme"), 0);
}

// What a miss may be told of: the tenant's own scopes, and never a group's that it has left.
TEST_F(KeyTest, ARequestNamesTheOtherScopesOfItsTenantAlone) {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::vector<std::string>>> seen;
  const auto ask = [&](const std::string& settings) {
    WriteKeys(settings);
    Start();
    engine_->set_script([&](const engine::GenerationRequest& request, uint32_t) {
      const std::lock_guard lock(mutex);
      seen.emplace_back(request.ns.tenant, request.own_scopes);
      return "HELLO";
    });
    EXPECT_EQ(Post(kChat, ChatBody("hi"), "key-a").status, 200);
    StopServer();
    const std::lock_guard lock(mutex);
    return seen.back();
  };
  using ::testing::Pair;
  EXPECT_THAT(ask(""), Pair("acme", ElementsAre("sensitive:acme")));
  EXPECT_THAT(ask(R"({"tenant": "acme", "sharing": "group", "group": "g"})"),
              Pair("group:g", ElementsAre("acme", "sensitive:acme")));
  EXPECT_THAT(ask(R"({"tenant": "acme", "sensitive": true})"),
              Pair("sensitive:acme", ElementsAre("acme")));
}

TEST_F(KeyTest, ARouteIsOpenToKeysWithItsRight) {
  Start();
  EXPECT_EQ(Get("/metrics").status, 401);
  EXPECT_EQ(HttpClient(port()).Get("/metrics", "key-m").status, 200);
  const HttpReply reply = HttpClient(port()).Get("/metrics", "key-a");
  EXPECT_EQ(reply.status, 403);
  EXPECT_EQ(reply.json()["error"]["code"], "missing_right");
  EXPECT_NE(reply.json()["error"]["message"].get<std::string>().find("\"metrics\""),
            std::string::npos);
  EXPECT_EQ(Post(kChat, ChatBody("hi"), "key-m").status, 403);
}

TEST_F(KeyTest, TenantsOfAGroupShareBlocksAndSeeTheirOwnRequestsAlone) {
  WriteKeys(R"({"tenant": "acme", "sharing": "group", "group": "g"})"
            "\n"
            R"({"tenant": "other", "sharing": "group", "group": "g"})"
            "\n");
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_GT(Cached("key-c"), 0);
  EXPECT_EQ(HttpClient(port()).Get("/kvlink/requests", "key-c").json()["data"].size(), 1u);
}

TEST_F(KeyTest, ATenantThatSharesNothingHitsNothing) {
  WriteKeys(R"({"tenant": "acme", "sharing": "none"})"
            "\n");
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_EQ(Cached("key-a"), 0);
  EXPECT_EQ(Cached("key-c"), 0);
  EXPECT_GT(Cached("key-c"), 0);
}

TEST_F(KeyTest, KeysAreReadAgainAndABrokenFileKeepsTheOldOnes) {
  Start();
  EXPECT_EQ(Cached("key-a"), 0);
  std::ofstream(options_.api_keys_file) << "{\"name\": 1}\n";
  EXPECT_EQ(ReloadKeys(*server_).code(), StatusCode::kInvalidArgument);
  EXPECT_GT(Cached("key-a"), 0);
  WriteKeys(R"({"tenant": "acme", "sensitive": true})"
            "\n");
  EXPECT_TRUE(ReloadKeys(*server_).ok());
  EXPECT_EQ(Cached("key-a"), 0);  // a scope of its own
  EXPECT_GT(Cached("key-a"), 0);
}

TEST_F(KeyTest, ATenantBeyondItsLimitIsToldSoAndComesBackLater) {
  WriteKeys(R"({"tenant": "acme", "max_requests": 1})"
            "\n");
  Start();
  const HttpReply both = Post(kCompletions, {{"prompt", {"a", "b"}}, {"max_tokens", 1}}, "key-a");
  EXPECT_EQ(both.status, 400) << both.body;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Post(kChat, ChatBody("hi"), "key-a").status, 200) << i;
  engine_->Hold();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kChat, ChatBody("hi").dump(), "key-a"));
  ASSERT_TRUE(Eventually([&] { return engine_->Stats().waiting == 1; }));
  const HttpReply reply = Post(kChat, ChatBody("hi"), "key-b");
  EXPECT_EQ(reply.status, 429);
  EXPECT_GE(std::stoi(reply.headers.at("retry-after")), 1);
  EXPECT_EQ(reply.json()["error"]["code"], "tenant_max_requests");
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
  engine_->Release();
}

// --- metrics ---

TEST_F(ServerTest, SumsOverAnswersEqualTheCounters) {
  Start();
  base::Random random(11);
  uint64_t prompt = 0, cached = 0, generated = 0, exact = 0, partial = 0, answers = 0;
  double last_prompt = 0;
  for (int i = 0; i < 150; ++i) {
    const std::string text =
        "question " + std::to_string(random.Below(12)) + std::string(random.Below(40), 'x');
    Json more = {{"max_tokens", 1 + random.Below(8)}, {"n", 1 + random.Below(3)}};
    if (random.OneIn(3)) more["cache_prompt"] = false;
    const bool stream = random.OneIn(2), include = random.OneIn(2);
    more["stream"] = stream;
    if (include) more["stream_options"] = {{"include_usage", true}};
    HttpReply reply;
    if (random.OneIn(3)) {
      more["prompt"] = {text, text + "!"};
      reply = Post(kCompletions, more);
    } else {
      reply = Post(kChat, ChatBody(text, more));
    }
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json json = stream ? Events(reply.body).back() : reply.json();
    ASSERT_TRUE(json.contains("usage") && json["usage"].is_object()) << json.dump();
    prompt += json["usage"]["prompt_tokens"].get<uint64_t>();
    generated += json["usage"]["completion_tokens"].get<uint64_t>();
    cached += json["usage"]["prompt_tokens_details"]["cached_tokens"].get<uint64_t>();
    exact += json["kvlink"]["exact"].get<uint64_t>();
    partial += json["kvlink"]["partial"].get<uint64_t>();
    answers += json["kvlink"].contains("prompts") ? json["kvlink"]["prompts"].size() : 1;
    if (i % 10 == 0) {
      const double now = Metric(MetricsText(), "vllm:prompt_tokens_total");
      EXPECT_GE(now, last_prompt);
      last_prompt = now;
    }
  }
  const std::string text = MetricsText();
  EXPECT_GT(cached, 0u);
  EXPECT_EQ(Metric(text, "vllm:prompt_tokens_total"), prompt);
  EXPECT_EQ(Metric(text, "vllm:prefix_cache_queries_total"), prompt);
  EXPECT_EQ(Metric(text, "vllm:prefix_cache_hits_total"), cached);
  EXPECT_EQ(Metric(text, "vllm:prompt_tokens_cached_total"), cached);
  EXPECT_EQ(Metric(text, "vllm:generation_tokens_total"), generated);
  EXPECT_EQ(Metric(text, "kvlink_reuse_tokens_total", "class=\"exact\""), exact);
  EXPECT_EQ(Metric(text, "kvlink_reuse_tokens_total", "class=\"partial\""), partial);
  EXPECT_EQ(Metric(text, "vllm:request_success_total"), answers);
  EXPECT_EQ(Metric(text, "vllm:e2e_request_latency_seconds_count"), answers);
  EXPECT_EQ(Metric(text, "vllm:time_to_first_token_seconds_count"), answers);
}

TEST_F(ServerTest, EveryPromisedMetricIsThereFromTheStart) {
  Start();
  const std::string text = MetricsText();
  for (const char* name : {"vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:external_prefix_cache_queries_total",
                           "vllm:external_prefix_cache_hits_total",
                           "vllm:prompt_tokens_total",
                           "vllm:prompt_tokens_cached_total",
                           "vllm:generation_tokens_total",
                           "vllm:kv_cache_usage_perc",
                           "vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:time_to_first_token_seconds_count",
                           "vllm:inter_token_latency_seconds_count",
                           "vllm:e2e_request_latency_seconds_count",
                           "vllm:request_success_total",
                           "kvlink_reuse_tokens_total",
                           "kvlink_miss_total",
                           "kvlink_blocks",
                           "kvlink_cow_copies_total",
                           "kvlink_single_flight_waits_total",
                           "kvlink_loads_total",
                           "kvlink_similar_total",
                           "kvlink_http_connections",
                           "kvlink_memory_refusals_total",
                           "kvlink_kv_withheld_bytes"}) {
    Metric(text, name);
  }
  for (const char* state : {"free", "cached", "in_use"}) Metric(text, "kvlink_blocks", state);
  for (const char* kind : {"exact", "partial", "similar"})
    Metric(text, "kvlink_reuse_tokens_total", kind);
  for (const char* reason :
       {"cold", "diverged", "evicted", "namespace", "salt", "tier_error", "policy"}) {
    Metric(text, "kvlink_miss_total", reason);
  }
}

// --- creation ---

TEST_F(ServerTest, WhatCannotBeServedIsRefusedAtTheStart) {
  Start();
  ServerOptions taken = options_;
  taken.port = port();
  auto second = Server::Create(*engine_, taken);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("127.0.0.1:" + std::to_string(port())));
  ServerOptions keys = options_;
  keys.api_keys_file = "/no/such/file";
  EXPECT_EQ(Server::Create(*engine_, keys).status().code(), StatusCode::kNotFound);
  ServerOptions host = options_;
  host.host = "no.such.host.invalid";
  EXPECT_FALSE(Server::Create(*engine_, host).ok());
  ServerOptions threads = options_;
  threads.threads = 0;
  EXPECT_THAT(Server::Create(*engine_, threads).status().message(), HasSubstr("0"));
}

}  // namespace
}  // namespace kvlink::server
