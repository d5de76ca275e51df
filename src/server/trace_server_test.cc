// What names a request in the server's answers and in its log.
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "server/testing/server_harness.h"

namespace kvlink::server {
namespace {

using ::testing::StartsWith;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kTraceparent = "traceparent: 00-" + kTrace + "-" + kParent + "-01\r\n";

class TraceServerTest : public ServerHarness {
 protected:
  TraceServerTest() : dir_(::testing::TempDir() + "kvlink_trace_" + std::to_string(getpid())) {
    options_.log_dir = dir_;
    options_.log_as_json = true;
    Start();
  }
  void TearDown() override {
    ServerHarness::TearDown();
    std::filesystem::remove_all(dir_);
  }

  HttpReply Get(const std::string& path, const std::string& headers) {
    HttpClient client(port());
    client.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + headers + "\r\n");
    return client.Read();
  }
  HttpReply Chat(const std::string& headers, bool stream) {
    const std::string body = ChatBody("hi", {{"stream", stream}}).dump();
    HttpClient client(port());
    client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + headers +
                "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return client.Read();
  }
  // Stops the server: a line is written when its answer has left.
  std::vector<Json> LinesOf(const std::string& request_id) {
    StopServer();
    std::ifstream file(dir_ + "/kvlink.log");
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      if (json.value("request_id", "") == request_id) lines.push_back(json);
    }
    return lines;
  }

  const std::string dir_;
};

TEST_F(TraceServerTest, AClientsRequestIdComesBackAndIsLogged) {
  for (const bool stream : {false, true}) {
    const HttpReply reply = Chat("X-Request-Id: mine-1\r\n", stream);
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-request-id"), "mine-1");
    EXPECT_FALSE(reply.headers.contains("traceresponse"));
    // Answers keep names of ours: two clients may give the same id.
    EXPECT_EQ(reply.body.find("mine-1"), std::string::npos);
  }
  std::vector<Json> lines = LinesOf("mine-1");
  ASSERT_EQ(lines.size(), 2u);
  // Two connections: their lines come in any order.
  if (lines[0]["cached_tokens"] > lines[1]["cached_tokens"]) std::swap(lines[0], lines[1]);
  EXPECT_EQ(lines[0]["message"], "answered");
  EXPECT_EQ(lines[0]["route"], "/v1/chat/completions");
  EXPECT_EQ(lines[0]["status"], 200);
  EXPECT_EQ(lines[0]["tenant"], "default");
  EXPECT_GT(lines[0]["prompt_tokens"].get<int>(), 0);
  EXPECT_GT(lines[1]["cached_tokens"].get<int>(), 0);
  EXPECT_TRUE(lines[0]["duration_ms"].is_number());
  EXPECT_FALSE(lines[0].contains("trace_id"));
}

TEST_F(TraceServerTest, AnIdThatCouldForgeALineIsReplaced) {
  for (const std::string& bad :
       {std::string("X-Request-Id: two words\r\n"), std::string("X-Request-Id: a\"b\r\n"),
        "X-Request-Id: " + std::string(129, 'x') + "\r\n",
        std::string("X-Request-Id: a\r\nX-Request-Id: b\r\n"), std::string("X-Request-Id: \r\n"),
        std::string()}) {
    const HttpReply reply = Get("/health", bad);
    EXPECT_EQ(reply.status, 200);
    EXPECT_THAT(reply.headers.at("x-request-id"), ::testing::MatchesRegex("[0-9a-f]{24}")) << bad;
  }
}

TEST_F(TraceServerTest, RefusalsAndMetricsCarryTheIdToo) {
  EXPECT_EQ(Get("/nowhere", "X-Request-Id: r1\r\n").headers.at("x-request-id"), "r1");
  EXPECT_EQ(Get("/metrics", "X-Request-Id: r2\r\n").headers.at("x-request-id"), "r2");
  EXPECT_EQ(Get("/", "X-Request-Id: r3\r\n").headers.at("x-request-id"), "r3");
  const std::vector<Json> lines = LinesOf("r1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["status"], 404);
  EXPECT_EQ(lines[0]["error"], "unknown_path");
}

// What HttpServer answers by itself: no handler ever saw it.
TEST_F(TraceServerTest, WhatTheHttpLayerRefusesIsNamedAndLoggedToo) {
  const auto refused = [&](const std::string& bytes) {
    HttpClient client(port());
    client.Send(bytes);
    return client.Read();
  };
  const std::string named = "POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Request-Id: big-1\r\n";
  const HttpReply big = refused(named + kTraceparent + "Content-Length: 99999999\r\n\r\n");
  EXPECT_EQ(big.status, 413);
  EXPECT_EQ(big.headers.at("x-request-id"), "big-1");
  EXPECT_EQ(big.headers.at("request-id"), "big-1") << "where Anthropic's clients look for it";
  EXPECT_THAT(big.headers.at("traceresponse"), StartsWith("00-" + kTrace + "-"));
  EXPECT_EQ(big.json()["type"], "error") << "as Anthropic's clients expect it on that path";

  const HttpReply endless = refused("GET /health HTTP/1.1\r\nX: " + std::string(40000, 'x'));
  EXPECT_EQ(endless.status, 431);
  EXPECT_THAT(endless.headers.at("x-request-id"), ::testing::MatchesRegex("[0-9a-f]{24}"));
  EXPECT_EQ(endless.json()["error"]["code"], "header_too_large");

  const HttpReply garbage = refused("\x16\x03\x01 this is no HTTP\r\n\r\n");
  EXPECT_EQ(garbage.status, 400);
  const std::string id = garbage.headers.at("x-request-id");
  EXPECT_THAT(id, ::testing::MatchesRegex("[0-9a-f]{24}"));

  std::vector<Json> lines = LinesOf("big-1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["message"], "answered");
  EXPECT_EQ(lines[0]["method"], "POST");
  EXPECT_EQ(lines[0]["route"], "/v1/messages");
  EXPECT_EQ(lines[0]["status"], 413);
  EXPECT_EQ(lines[0]["error"], "body_too_large");
  EXPECT_EQ(lines[0]["trace_id"], kTrace);
  EXPECT_TRUE(lines[0]["duration_ms"].is_number());
  EXPECT_FALSE(lines[0].contains("tenant")) << "nobody has looked at a key";
  lines = LinesOf(id);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["route"], "other");
  EXPECT_EQ(lines[0]["error"], "malformed_request");
  ASSERT_EQ(LinesOf(endless.headers.at("x-request-id")).size(), 1u);
}

TEST_F(TraceServerTest, AConnectionThatFindsNoPlaceHasAnIdAndALineToo) {
  options_.limits.max_connections = 1;
  Restart();
  engine_->Hold();
  HttpClient busy(port());
  busy.Send(HttpClient::PostText("/v1/completions", R"({"prompt": "hi"})"));
  ASSERT_TRUE(EventuallyWaiting(1));
  HttpClient other(port());
  const HttpReply full = other.Read();
  engine_->Release();
  EXPECT_EQ(busy.Read().status, 200);
  ASSERT_EQ(full.status, 503);
  EXPECT_EQ(full.json()["error"]["code"], "too_many_connections");
  EXPECT_GE(std::stoi(full.headers.at("retry-after")), 1);
  const std::vector<Json> lines = LinesOf(full.headers.at("x-request-id"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["status"], 503);
  EXPECT_EQ(lines[0]["error"], "too_many_connections");
}

TEST_F(TraceServerTest, ASlowSendersRequestIsNamedByWhatHadCome) {
  options_.limits.request_timeout = std::chrono::milliseconds(100);
  Restart();
  HttpClient slow(port());
  slow.Send("POST /v1/completions HTTP/1.1\r\nX-Request-Id: slow-1\r\nContent-Length: 9\r\n\r\n{");
  const HttpReply late = slow.Read();
  EXPECT_EQ(late.status, 408);
  EXPECT_EQ(late.headers.at("x-request-id"), "slow-1");
  const std::vector<Json> lines = LinesOf("slow-1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["route"], "/v1/completions");
  EXPECT_EQ(lines[0]["error"], "request_timeout");
  EXPECT_GE(lines[0]["duration_ms"].get<double>(), 99.0);
}

TEST_F(TraceServerTest, ARefusedMethodSaysWhichAreTaken) {
  const HttpReply reply = Get("/v1/completions", "");
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "POST");
  EXPECT_EQ(HttpClient(port()).Post("/v1/responses/x", Json::object()).headers.at("allow"),
            "GET, HEAD, DELETE");
}

TEST_F(TraceServerTest, AnErrorOfTheEngineIsNamedInTheLog) {
  engine_->set_failure(Status(StatusCode::kDeadlineExceeded, "too late"));
  EXPECT_EQ(Chat("X-Request-Id: failed-1\r\n", false).status, 504);
  const std::vector<Json> lines = LinesOf("failed-1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["error"], "deadline_exceeded");
}

TEST_F(TraceServerTest, ATraceIsLoggedAndAnsweredWithASpanOfItsOwn) {
  const HttpReply reply =
      Chat("X-Request-Id: t1\r\n" + kTraceparent + "tracestate: a=1\r\ntracestate: b=2\r\n", false);
  const std::string& response = reply.headers.at("traceresponse");
  EXPECT_THAT(response, StartsWith("00-" + kTrace + "-"));
  EXPECT_EQ(response.find(kParent), std::string::npos);
  EXPECT_FALSE(reply.headers.contains("traceparent"));  // a header of requests
  const std::vector<Json> lines = LinesOf("t1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["trace_id"], kTrace);
  EXPECT_EQ(lines[0]["parent_span_id"], kParent);
  EXPECT_EQ(response.substr(36, 16), lines[0]["span_id"].get<std::string>());
  EXPECT_EQ(lines[0]["trace_flags"], "01");
  EXPECT_EQ(lines[0]["trace_state"], "a=1,b=2");
}

TEST_F(TraceServerTest, ABrokenTraceIsNoReasonToRefuse) {
  for (const std::string& bad :
       {std::string("traceparent: nonsense\r\n"), kTraceparent + kTraceparent}) {
    const HttpReply reply = Get("/health", "X-Request-Id: b1\r\n" + bad);
    EXPECT_EQ(reply.status, 200);
    EXPECT_FALSE(reply.headers.contains("traceresponse"));
  }
  const std::vector<Json> lines = LinesOf("b1");
  ASSERT_EQ(lines.size(), 2u);
  for (const Json& line : lines) EXPECT_FALSE(line.contains("trace_id"));
}

}  // namespace
}  // namespace kvlink::server
