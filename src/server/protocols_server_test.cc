// The server with an engine that says what a model with reasoning and tools would say.
#include <gmock/gmock.h>

#include <mutex>
#include <sstream>
#include <string>

#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

using ::testing::HasSubstr;

const char kSpeech[] =
    "<think>hm</think>Look.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\":  1}}</tool_call>";

class ProtocolsServerTest : public ServerHarness {
 protected:
  ProtocolsServerTest() {
    options_.similar = SimilarPolicy::kOn;
    Start();
    engine_->set_script([this](const engine::GenerationRequest& request, uint32_t) {
      const std::lock_guard lock(mutex_);
      last_ = request;
      return std::string(kSpeech);
    });
  }
  HttpReply Delete(const std::string& path) {
    HttpClient client(port());
    client.Send("DELETE " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    return client.Read();
  }
  engine::GenerationRequest last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  static Json Body(const Json& more = Json::object()) {
    Json body = ChatBody("hi", {{"max_tokens", 500}});
    body.update(more);
    return body;
  }
  static Json Tool() { return {{"type", "function"}, {"function", {{"name", "f"}}}}; }

  std::mutex mutex_;
  engine::GenerationRequest last_;
};

TEST_F(ProtocolsServerTest, ReasoningAndCallsStandBesideTheContent) {
  const Json choice = Post(kChat, Body({{"tools", {Tool()}}})).json()["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "hm");
  EXPECT_EQ(choice["message"]["content"], "Look.");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":  1}");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  // Without tools a call is text, and reasoning can be left where it is.
  const Json plain = Post(kChat, Body({{"reasoning_format", "none"}})).json()["choices"][0];
  EXPECT_EQ(plain["message"], Json({{"role", "assistant"}, {"content", kSpeech}}));
  EXPECT_EQ(plain["finish_reason"], "stop");
}

TEST_F(ProtocolsServerTest, AStreamTellsReasoningContentAndCallsInTurn) {
  const HttpReply reply = Post(kChat, Body({{"tools", {Tool()}}, {"stream", true}}));
  std::string reasoning, content, name, arguments, finish;
  std::istringstream lines(reply.body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const Json event = Json::parse(line.substr(6));
    for (const Json& choice : event["choices"]) {
      const Json& delta = choice["delta"];
      reasoning += delta.value("reasoning_content", "");
      content += delta.value("content", "");
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        name += call["function"].value("name", "");
        arguments += call["function"].value("arguments", "");
      }
      if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
    }
  }
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(content, "Look.");
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, "{\"a\":  1}");
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(ProtocolsServerTest, SimilarReuseIsOffWhereAnAnswerIsReliedOn) {
  Post(kChat, Body());
  EXPECT_EQ(last().similar, SimilarPolicy::kOn);
  Post(kChat, Body({{"tools", {Tool()}}}));
  EXPECT_EQ(last().similar, SimilarPolicy::kOff);
  EXPECT_EQ(last().sampling.grammar, "");
  Post(kChat, Body({{"tools", {Tool()}}, {"tool_choice", "none"}}));
  EXPECT_EQ(last().similar, SimilarPolicy::kOn);
  Post(kChat, Body({{"tools", {Tool()}}, {"tool_choice", "required"}}));
  EXPECT_THAT(last().sampling.grammar, HasSubstr("tool_call"));
  Post(kChat, Body({{"response_format", {{"type", "json_object"}}}}));
  EXPECT_EQ(last().similar, SimilarPolicy::kOff);
}

TEST_F(ProtocolsServerTest, MessagesAreAnsweredAndRefusedInTheirOwnForm) {
  const Json answer = Post("/v1/messages", Body()).json();
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["content"][0]["type"], "thinking");
  const HttpReply refused = Post("/v1/messages", {{"messages", 1}, {"max_tokens", 1}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json()["type"], "error");
  EXPECT_EQ(refused.json()["error"]["type"], "invalid_request_error");
  const HttpReply broken =
      Post("/v1/messages", Body({{"messages", {{{"role", "user"}, {"content", {1}}}}}}));
  EXPECT_EQ(broken.json()["type"], "error");
  EXPECT_GT(Post("/v1/messages/count_tokens", Body()).json()["input_tokens"], 3);
}

TEST_F(ProtocolsServerTest, ResponsesAreKeptShownAndForgotten) {
  const Json first = Post("/v1/responses", {{"input", "hi"}}).json();
  EXPECT_EQ(first["status"], "completed");
  const std::string path = "/v1/responses/" + first["id"].get<std::string>();
  EXPECT_EQ(Get(path).json()["output"], first["output"]);
  const Json second =
      Post("/v1/responses", {{"input", "more"}, {"previous_response_id", first["id"]}}).json();
  EXPECT_GT(second["usage"]["input_tokens"], first["usage"]["input_tokens"]);
  EXPECT_EQ(Delete(path).json()["deleted"], true);
  EXPECT_EQ(Get(path).status, 404);
  const Json unseen = Post("/v1/responses", {{"input", "hi"}, {"store", false}}).json();
  EXPECT_EQ(Get("/v1/responses/" + unseen["id"].get<std::string>()).status, 404);
  const HttpReply wrong = Post(path, Json::object());
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.body, HasSubstr("GET and DELETE"));
}

TEST_F(ProtocolsServerTest, WhatIsNotHereSaysWhy) {
  EXPECT_EQ(Post("/v1/embeddings", {{"input", "x"}}).status, 501);
  const HttpReply suffix = Post("/v1/completions", {{"prompt", "a"}, {"suffix", "b"}});
  EXPECT_EQ(suffix.status, 400);
  EXPECT_EQ(suffix.json()["error"]["param"], "suffix");
  EXPECT_EQ(Get("/openapi.json").json()["openapi"], "3.1.0");
  EXPECT_EQ(Get("/props").json()["default_generation_settings"]["n_ctx"], 4096);
}

TEST_F(ProtocolsServerTest, ASuffixIsFilledInFrontOfByModelsThatHaveTheTokens) {
  model_.fake_tokenizer().set_fill_tokens(FakeTokenizer::kFillTokens);
  const HttpReply reply = Post("/v1/completions", {{"prompt", "AB"}, {"suffix", "C D"}});
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_THAT(last().prompt, ::testing::ElementsAre(kBos, 1, 'A', 'B', 2, 'C', ' ', 'D', 3));
  // A prompt of ids stays what it is; a text cannot write the tokens itself.
  Post("/v1/completions", {{"prompt", {'A', kImStart}}, {"suffix", "<|im_end|>"}});
  const std::vector<TokenId> prompt = last().prompt;
  EXPECT_EQ(prompt[2], 'A');
  EXPECT_EQ(prompt[3], kImStart);
  EXPECT_EQ(std::ranges::count(prompt, kImEnd), 0);
  EXPECT_EQ(prompt.back(), 3);
}

TEST_F(ProtocolsServerTest, AWebPageElsewhereReadsNothing) {
  HttpClient client(port());
  client.Send("GET /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://elsewhere.example\r\n\r\n");
  const HttpReply answer = client.Read();
  EXPECT_EQ(answer.status, 200);
  client.Send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://elsewhere.example\r\n"
      "Access-Control-Request-Method: POST\r\n\r\n");
  const HttpReply preflight = client.Read();
  EXPECT_EQ(preflight.status, 405);
  EXPECT_EQ(preflight.headers.at("allow"), "POST");
  for (const HttpReply& reply : {answer, preflight}) {
    for (const auto& [name, value] : reply.headers) {
      EXPECT_FALSE(name.starts_with("access-control-")) << name << ": " << value;
    }
  }
}

TEST_F(ProtocolsServerTest, AnotherOrderOfToolKeysIsToldUnlessTheyAreSorted) {
  const auto ask = [&](const char* tools, bool sort) {
    const std::string body = R"({"messages":[{"role":"user","content":"hi"}],"tools":)" +
                             std::string(tools) + R"(,"kvlink":{"sort_tool_keys":)" +
                             (sort ? "true" : "false") + "}}";
    HttpClient client(port());
    client.Send(HttpClient::PostText(kChat, body));
    return client.Read().json();
  };
  const char* a = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const char* b = R"([{"function":{"parameters":{"type":"object"},"name":"f"},"type":"function"}])";
  EXPECT_TRUE(ask(a, false)["kvlink"]["miss_detail"].is_null());
  const Json other = ask(b, false);
  EXPECT_EQ(other["kvlink"]["miss_reason"], "diverged");
  EXPECT_EQ(other["kvlink"]["miss_detail"], "tool_key_order");
  const int cached = ask(a, true)["usage"]["prompt_tokens_details"]["cached_tokens"];
  EXPECT_GT(ask(b, true)["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
}

}  // namespace
}  // namespace kvlink::server
