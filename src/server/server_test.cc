// Routes, errors, metrics, clients that leave, and how a server begins and ends.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ServerTest : public ServerHarness {};

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
  client.Send(ChatText("hi", {{"stream", true}}));
  ASSERT_TRUE(EventuallyRunning(1));
  engine_->set_failure(Status(StatusCode::kInternal, "the graph broke"));
  const HttpReply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_THAT(reply.body, HasSubstr("\"error\":{\"code\":null,\"message\":\"the graph broke\""));
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
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
      client.Send(ChatText("hi", {{"stream", stream}, {"n", 2}}));
      ASSERT_TRUE(EventuallyRunning(1));
      reset ? client.Reset() : client.Close();
      ++cancels;
      EXPECT_TRUE(Eventually(
          [&] { return engine_->cancels() == cancels && engine_->Stats().running == 0; }));
    }
  }
  EXPECT_EQ(Metric("kvlink_disconnects_total", "peer_closed"), 4);
}

TEST_F(ServerTest, AClientThatLeavesTheQueueCancelsAllItsPrompts) {
  Start();
  engine_->Hold();
  HttpClient client(port());
  client.Send(HttpClient::PostText(kCompletions, Json{{"prompt", {"a", "b", "c"}}}.dump()));
  ASSERT_TRUE(EventuallyWaiting(3));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 3; }));
  engine_->Release();
  // What never ran counts no tokens.
  EXPECT_EQ(Metric("vllm:prompt_tokens_total"), 0);
  EXPECT_EQ(Metric("vllm:request_success_total", "abort"), 3);
}

TEST_F(ServerTest, AReaderThatStopsIsCutOffAndStopsNobodyElse) {
  options_.limits.max_pending_bytes = 100000;
  options_.limits.max_pending_events = 1000000000;
  engine_options_.context = kEndless;
  Start();
  SayWithoutEnd();
  HttpClient slow(port());
  slow.ShrinkReceiveBuffer();
  slow.Send(ChatText("hi", {{"stream", true}}));
  ASSERT_TRUE(EventuallyRunning(1));
  const HttpReply other = Post(kChat, ChatBody("hi", {{"max_tokens", 50}}));
  EXPECT_EQ(other.status, 200);
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
  EXPECT_EQ(Metric("kvlink_disconnects_total", "slow_reader"), 1);
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

TEST_F(ServerTest, APromptBeyondTheKvMemoryHasTheCodeOfThatInEveryProtocol) {
  Start();
  engine_->set_refusal(Status(StatusCode::kInvalidArgument, "the KV budget holds 16 tokens"));
  const std::string text(200, 'x');
  const auto refusal = [&](const std::string& path, const Json& body) {
    const HttpReply reply = Post(path, body);
    EXPECT_EQ(reply.status, 400) << path;
    return reply.json()["error"];
  };
  // What is refused for another reason has another one.
  EXPECT_EQ(refusal(kChat, ChatBody(text))["code"], nullptr);
  engine_->set_total_pages(1);
  for (const bool stream : {false, true}) {
    EXPECT_EQ(refusal(kChat, ChatBody(text, {{"stream", stream}}))["code"], "kv_memory_exceeded");
  }
  EXPECT_EQ(refusal(kCompletions, {{"prompt", text}})["code"], "kv_memory_exceeded");
  EXPECT_EQ(refusal("/v1/responses", {{"input", text}})["code"], "kv_memory_exceeded");
  const Json anthropic = refusal("/v1/messages", ChatBody(text, {{"max_tokens", 2}}));
  EXPECT_EQ(anthropic["type"], "invalid_request_error");
  EXPECT_EQ(anthropic["message"], "the KV budget holds 16 tokens");
}

TEST_F(ServerTest, APathWithoutItsVersionIsToldWhereItIs) {
  Start();
  for (const char* path : {"/chat/completions", "/completions", "/responses", "/messages",
                           "/embeddings", "/models", "/models/some"}) {
    const HttpReply reply = Get(path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(reply.json()["error"]["code"], "unknown_path") << path;
    EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(),
                HasSubstr("the path is /v1" + std::string(path) + ":"));
  }
  EXPECT_EQ(Get("/nowhere").json()["error"]["message"], "there is no /nowhere here");
}

TEST_F(ServerTest, AWholeAnswerIsNoSlowReaderHoweverManyTokensComeAtOnce) {
  options_.limits.max_pending_events = 1;
  Start();
  const HttpReply reply = Post(kChat, ChatBody("hi", {{"logprobs", true}, {"n", 4}}));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Metric("kvlink_disconnects_total", "slow_reader"), 0);
}

TEST_F(ServerTest, TwoHundredStreamsOnTwoThreads) {
  Start();
  engine_->Hold();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(std::make_unique<HttpClient>(port()));
    ASSERT_TRUE(
        clients.back()->Send(ChatText("question " + std::to_string(i), {{"stream", true}})));
  }
  ASSERT_TRUE(EventuallyWaiting(200));
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
  busy.Send(ChatText("hi"));
  ASSERT_TRUE(EventuallyWaiting(1));
  server_->Stop();
  EXPECT_TRUE(idle.AtEnd());
  // Nobody accepts.
  EXPECT_TRUE(Eventually([&] { return HttpClient(port()).Get("/health").status == 0; }));
  engine_->Release();
  const HttpReply reply = busy.Read();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("connection"), "keep-alive");  // promised before the stop
  EXPECT_TRUE(busy.AtEnd());
  busy.Close();
  thread_.join();
  server_.reset();
}

TEST_F(ServerTest, StopCancelsWhatDoesNotFinishInTimeAndSaysSo) {
  options_.limits.shutdown_grace = milliseconds(50);
  Start();
  engine_->Hold();
  HttpClient openai(port()), anthropic(port());
  openai.Send(ChatText("hi"));
  anthropic.Send(HttpClient::PostText("/v1/messages", ChatBody("hi", {{"max_tokens", 2}}).dump()));
  ASSERT_TRUE(EventuallyWaiting(2));
  server_->Stop();
  const HttpReply reply = openai.Read();
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.json()["error"]["code"], "shutting_down");
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_EQ(reply.headers.count("x-request-id"), 1u);
  EXPECT_TRUE(openai.AtEnd());
  const HttpReply other = anthropic.Read();
  EXPECT_EQ(other.status, 503);
  EXPECT_EQ(other.json()["error"]["message"], "the server is shutting down");
  EXPECT_TRUE(anthropic.AtEnd());
  thread_.join();
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 2; }));
  server_.reset();
}

TEST_F(ServerTest, AStreamThatAStopCutsOffEndsWithAnError) {
  options_.limits.shutdown_grace = milliseconds(50);
  options_.limits.max_pending_bytes = size_t{1} << 30;
  options_.limits.max_pending_events = 1000000000;
  engine_options_.context = kEndless;
  Start();
  SayWithoutEnd();
  HttpClient client(port());
  client.Send(ChatText("hi", {{"stream", true}}));
  EXPECT_EQ(client.Read("content").status, 200);
  engine_->Hold();  // what there is so far can be taken in the time that is left
  server_->Stop();
  const std::string rest = client.ReadRaw();
  EXPECT_THAT(rest, HasSubstr(R"("code":"shutting_down")"));
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
  thread_.join();
  EXPECT_TRUE(Eventually([&] { return engine_->cancels() == 1; }));
  server_.reset();
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
      const double now = Metric("vllm:prompt_tokens_total");
      EXPECT_GE(now, last_prompt);
      last_prompt = now;
    }
  }
  const std::string text = MetricsText();
  EXPECT_GT(cached, 0u);
  EXPECT_EQ(MetricOf(text, "vllm:prompt_tokens_total"), prompt);
  EXPECT_EQ(MetricOf(text, "vllm:prefix_cache_queries_total"), prompt);
  EXPECT_EQ(MetricOf(text, "vllm:prefix_cache_hits_total"), cached);
  EXPECT_EQ(MetricOf(text, "vllm:prompt_tokens_cached_total"), cached);
  EXPECT_EQ(MetricOf(text, "vllm:generation_tokens_total"), generated);
  EXPECT_EQ(MetricOf(text, "kvlink_reuse_tokens_total", "class=\"exact\""), exact);
  EXPECT_EQ(MetricOf(text, "kvlink_reuse_tokens_total", "class=\"partial\""), partial);
  EXPECT_EQ(MetricOf(text, "vllm:request_success_total"), answers);
  EXPECT_EQ(MetricOf(text, "vllm:e2e_request_latency_seconds_count"), answers);
  EXPECT_EQ(MetricOf(text, "vllm:time_to_first_token_seconds_count"), answers);
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
    MetricOf(text, name);
  }
  for (const char* state : {"free", "cached", "in_use"}) MetricOf(text, "kvlink_blocks", state);
  for (const char* kind : {"exact", "partial", "similar"})
    MetricOf(text, "kvlink_reuse_tokens_total", kind);
  for (const char* reason :
       {"cold", "diverged", "evicted", "namespace", "salt", "tier_error", "policy"}) {
    MetricOf(text, "kvlink_miss_total", reason);
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
